"""Host tensors that are read before and after a wait for the copy to them; ``# early`` marks what comes too early."""

import copy
import threading

import numpy as np
import torch

COUNT = 1 << 20
value = torch.ones(COUNT, device="cuda")
kept = torch.empty(COUNT, pin_memory=True)
other = torch.ones(1, device="cuda")
small = torch.ones(1, device="cuda")


def moved(source=value):
    torch.cuda._sleep(10_000_000)
    return source.to("cpu", non_blocking=True)


def done():
    torch.cuda.synchronize()


# Too early
moved()[-1].item()  # early
done()
moved().numpy().sum()  # early
done()
moved().tolist()  # early
done()
(moved() + 1).sum()  # early
done()
torch.stack([moved(), kept]).sum()  # early
done()
np.asarray(moved())  # early
done()
for part in moved().split(COUNT // 2):
    part.sum()  # early
done()
copy.deepcopy(moved())  # early
done()
torch.cuda._sleep(10_000_000)
kept.copy_(value, non_blocking=True)
kept.view(2, -1)[0].max()  # early
done()
kept.copy_(value, non_blocking=True)
print(kept[:2])  # early
done()
side = torch.cuda.Stream()
host = moved()
side.synchronize()  # another stream
host.sum()  # early
done()
float(moved(small))  # early
done()
host = moved(small)
on_gpu = value * host[0]  # early
done()
luck = value.to("cpu", non_blocking=True)
for _ in range(2_000_000):
    pass
luck.sum()  # early

# In time
host = moved()
torch.cuda.current_stream().synchronize()
host.sum()
host = moved()
event = torch.cuda.Event()
event.record()
host.shape, host.dtype, len(host), host.is_pinned(), host[1:].stride(), type(host), isinstance(host, torch.Tensor)
event.synchronize()
host.sum()
host = moved()
event.record()
while not event.query():
    pass
host.tolist()
host = moved()
other.item()
host.numpy()
host = moved()
waiter = threading.Thread(target=done)
waiter.start()
waiter.join()
host.sum()
back = moved().to("cuda", non_blocking=True)
value.copy_(moved(), non_blocking=True)
done()
assert torch.equal(back, value)
assert type(host) is torch.Tensor
assert type(moved().to("cuda")) is torch.Tensor
with torch.cuda.stream(side):
    host = moved()
side.synchronize()
host.sum()
print("end")

# One kernel moves all pieces over the link; BLOCKS blocks (multiprocessors) are enough. Pieces of 16 bytes times N.
import cupy
import numpy as np

kernel = cupy.RawKernel(r"""
MOVE_PIECES""", "move_pieces")


def mover(area, row, places, to_gpu, stream, blocks=BLOCKS):
    """A function that launches the kernel."""
    places = cupy.asarray(places, np.int32)
    words = area.shape[1] // 16
    arguments = (
        np.uint64(area.ctypes.data), np.uint64(row.data.ptr), places, np.uint32(words),
        np.uint32(len(places) * words), np.int32(to_gpu),
    )
    cupy.cuda.get_current_stream().synchronize()  # the places are there

    def move():
        with stream:
            kernel((blocks,), (512,), arguments)

    return move

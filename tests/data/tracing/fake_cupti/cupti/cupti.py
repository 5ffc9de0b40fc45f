"""The part of cupti-python 13.0 that PinScope asks; the offsets are those of CUPTI's public structures."""

import ctypes
import os
from enum import IntEnum

import numpy as np


class ActivityKind(IntEnum):
    MEMCPY = 1
    CONCURRENT_KERNEL = 10
    UNIFIED_MEMORY_COUNTER = 25
    MEMORY2 = 49


class driver_api_trace_cbid(IntEnum):
    cuStreamSynchronize = 126
    cuMemFreeHost = 130
    cuMemHostAlloc = 131
    cuMemcpyHtoD_v2 = 276
    cuMemcpyHtoDAsync_v2 = 277
    cuMemcpyDtoHAsync_v2 = 279
    cuLaunchKernel = 307
    cuMemAllocManaged = 371
    cuMemPrefetchAsync_v2 = 716
    cuMemcpyWithAttributesAsync = 837


class runtime_api_trace_cbid(IntEnum):
    cudaGetDeviceCount_v3020 = 3
    cudaGetLastError_v3020 = 10
    cudaEventQuery_v3020 = 138
    cudaHostRegister_v4000 = 152


def _layout(size, **fields):
    """A record: name → offset and type."""
    return np.dtype({
        "names": list(fields), "offsets": [place for place, _ in fields.values()],
        "formats": [kind for _, kind in fields.values()], "itemsize": size,
    })  # fmt: skip


activity_memcpy6_dtype = _layout(
    96, kind=(0, "<i4"), copy_kind=(4, "|u1"), src_kind=(5, "|u1"), dst_kind=(6, "|u1"), flags_=(7, "|u1"),
    bytes=(8, "<u8"), start=(16, "<u8"), end=(24, "<u8"), device_id=(32, "<u4"), stream_id=(40, "<u4"),
    correlation_id=(44, "<u4"),
)  # fmt: skip
activity_memory_dtype = _layout(80, kind=(0, "<i4"))
activity_memory4_dtype = _layout(
    128, kind=(0, "<i4"), memory_operation_type=(4, "<i4"), memory_kind=(8, "<i4"), correlation_id=(12, "<u4"),
    address=(16, "<u8"), bytes=(24, "<u8"), timestamp=(32, "<u8"),
)  # fmt: skip
activity_kernel10_dtype = _layout(
    216, kind=(0, "<i4"), start=(16, "<u8"), end=(24, "<u8"), device_id=(40, "<u4"), stream_id=(48, "<u4"),
    correlation_id=(92, "<u4"),
)  # fmt: skip
activity_unified_memory_counter3_dtype = _layout(
    104, kind=(0, "<i4"), counter_kind=(4, "<i4"), value=(8, "<u8"), start=(16, "<u8"), end=(24, "<u8"),
    flags_=(56, "<u4"),
)  # fmt: skip
callback_data_dtype = _layout(72, callback_site=(0, "<i4"), function_params=(16, "<i8"), correlation_id=(64, "<u4"))


def get_timestamp():
    """Load the library; without one, say what cupti-python says without a driver."""
    library = os.environ.get("FAKE_CUPTI")
    if not library:
        raise NotSupportedError("CUDA driver is not found (libcuda.so.1: cannot open shared object file)")
    ctypes.CDLL(library)
    return 0


class NotSupportedError(Exception):
    """As of cupti-python."""

"""Calls that returned an error: which of them are one failure, what had made it fail, and who met the error later."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinscope.tracing.cupti_library import RUNTIME
from pinscope.tracing.sites import ALLOCATES

READS_ERROR = re.compile(r"cuda(Get|PeekAt)LastError")
"""Functions that return the error which an earlier call of the thread has left behind."""
_GIVES_BACK = re.compile("Unregister|FreeHost")


@dataclass(frozen=True)
class Failure:
    """Calls of one function and line that returned the same error.

    Attributes:
        first: the first of them.
        count: how many there were.
        follows: the process had lost its context before, so that each of its calls failed.
        noticed: the first call of another line that read the error which they had left behind; ``None``: none did.
        noticed_count: how often that line did.
    """

    first: Any
    count: int
    follows: bool
    noticed: Any | None
    noticed_count: int


def failures(failed: NDArray[Any], names: Mapping[int, str], lines: NDArray[np.intp]) -> Iterator[Failure]:
    """The failures of a process, the earliest first.

    Args:
        failed: fields of :data:`pinscope.tracing.spool.FAILED`, in the order in which the calls were over.
        names: of the functions.
        lines: of each call the number of its line.
    """
    by_thread = np.argsort(failed["thread"], kind="stable")
    failed, lines = failed[by_thread], lines[by_thread]
    kept = ~_inside_runtime(failed)
    failed, lines = failed[kept], lines[kept]
    reads = np.isin(failed["function"], [number for number, name in names.items() if READS_ERROR.match(name)])
    left = _left_behind(failed, reads)
    known = reads & (left >= 0)
    kinds = (failed["function"].astype(np.int64) << 12 | failed["error"]) << 28 | lines
    groups = np.where(known, -1, np.unique(kinds, return_inverse=True)[1])
    noticed = np.where(known & (lines != lines[left]), groups[left], -1)
    moments, lost = failed["moment"], _first_moments(failed)
    origins = [np.flatnonzero(groups == group) for group in np.unique(groups[~known])]
    for places in sorted(origins, key=lambda places: int(moments[places].min())):
        first = places[np.argmin(moments[places])]
        lost_at = lost.get(int(failed["error"][first]))
        met = np.flatnonzero(noticed == groups[first]) if lost_at is None else places[:0]
        yield Failure(
            failed[first],
            int(failed["count"][places].sum()),
            lost_at is not None and int(moments[first]) > lost_at,
            failed[met[0]] if len(met) else None,
            int(failed["count"][met[lines[met] == lines[met[0]]]].sum()) if len(met) else 0,
        )


def _first_moments(failed: NDArray[Any]) -> dict[int, int]:
    """Of each error by a kernel, when the process was told of it first."""
    codes = LOSES_CONTEXT & set(failed["error"].tolist())
    return {code: int(failed["moment"][failed["error"] == code].min()) for code in codes}


def _inside_runtime(failed: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of these, by thread, the runtime made for a call that then failed, too: that is the program's."""
    runtime = failed["function"] >> 16 == RUNTIME
    following = np.where(runtime, np.arange(len(failed)), len(failed))
    following = np.minimum.accumulate(following[::-1])[::-1]
    there = following < len(failed)
    behind = failed[np.where(there, following, 0)]
    same = (behind["thread"] == failed["thread"]) & (behind["correlation_id"] == failed["correlation_id"])
    return np.asarray(~runtime & there & same)


def _left_behind(failed: NDArray[Any], reads: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Of each of these, by thread, the place of the runtime's last call before that returned the same error; −1 where
    there is none."""
    leaves = (failed["function"] >> 16 == RUNTIME) & ~reads
    before = np.maximum.accumulate(np.where(leaves, np.arange(len(failed)), -1))
    same = (failed["thread"][before] == failed["thread"]) & (failed["error"][before] == failed["error"])
    return np.asarray(np.where((before >= 0) & same, before, -1), np.intp)


def earlier_memory(first: Any, name: str, events: NDArray[Any]) -> Any | None:
    """The record of what had made a call fail that registers memory or gives it back: the allocation or registration
    of the same range that was still there, or the release before. ``None`` where that is not known.

    Args:
        first: the call.
        name: of its function.
        events: CUPTI's records of allocations and releases of pinned memory.
    """
    before = events[events["timestamp"] < first["moment"]]
    before = before[np.argsort(before["timestamp"], kind="stable")]
    address, end = int(first["address"]), int(first["address"]) + max(int(first["bytes"]), 1)
    if "HostRegister" in name:
        there: dict[int, Any] = {}
        for event in before[(before["address"] < end)]:
            if event["memory_operation_type"] == ALLOCATES:
                there[int(event["address"])] = event
            else:
                there.pop(int(event["address"]), None)
        return next((event for event in there.values() if event["address"] + event["bytes"] > address), None)
    if _GIVES_BACK.search(name):
        released = before[(before["address"] == address) & (before["memory_operation_type"] != ALLOCATES)]
        return released[-1] if len(released) else None
    return None


# The errors by their codes, which runtime and driver share

_NAMES = """
1:InvalidValue 2:MemoryAllocation:OUT_OF_MEMORY 3:InitializationError:NOT_INITIALIZED
4:CudartUnloading:DEINITIALIZED 5:ProfilerDisabled 6:ProfilerNotInitialized 7:ProfilerAlreadyStarted
8:ProfilerAlreadyStopped 9:InvalidConfiguration 13:InvalidSymbol 16:InvalidHostPointer 17:InvalidDevicePointer
21:InvalidMemcpyDirection 34:StubLibrary 35:InsufficientDriver 36:CallRequiresNewerDriver
46:DevicesUnavailable:DEVICE_UNAVAILABLE 49:IncompatibleDriverContext 52:MissingConfiguration 53:PriorLaunchFailure
98:InvalidDeviceFunction 100:NoDevice 101:InvalidDevice 102:DeviceNotLicensed 200:InvalidKernelImage:INVALID_IMAGE
201:DeviceUninitialized:INVALID_CONTEXT 202:-:CONTEXT_ALREADY_CURRENT 205:MapBufferObjectFailed:MAP_FAILED
206:UnmapBufferObjectFailed:UNMAP_FAILED 207:ArrayIsMapped 208:AlreadyMapped
209:NoKernelImageForDevice:NO_BINARY_FOR_GPU 210:AlreadyAcquired 211:NotMapped 212:NotMappedAsArray
213:NotMappedAsPointer 214:ECCUncorrectable:ECC_UNCORRECTABLE 215:UnsupportedLimit
216:DeviceAlreadyInUse:CONTEXT_ALREADY_IN_USE 217:PeerAccessUnsupported 218:InvalidPtx 219:InvalidGraphicsContext
220:NvlinkUncorrectable 221:JitCompilerNotFound 222:UnsupportedPtxVersion 223:JitCompilationDisabled
224:UnsupportedExecAffinity 225:UnsupportedDevSideSync:UNSUPPORTED_DEVSIDE_SYNC 226:Contained 300:InvalidSource
301:FileNotFound 302:SharedObjectSymbolNotFound 303:SharedObjectInitFailed 304:OperatingSystem
400:InvalidResourceHandle:INVALID_HANDLE 401:IllegalState 402:LossyQuery 500:SymbolNotFound:NOT_FOUND
700:IllegalAddress 701:LaunchOutOfResources 702:LaunchTimeout 703:LaunchIncompatibleTexturing
704:PeerAccessAlreadyEnabled 705:PeerAccessNotEnabled 708:SetOnActiveProcess:PRIMARY_CONTEXT_ACTIVE
709:ContextIsDestroyed 710:Assert 711:TooManyPeers 712:HostMemoryAlreadyRegistered 713:HostMemoryNotRegistered
714:HardwareStackError 715:IllegalInstruction 716:MisalignedAddress 717:InvalidAddressSpace 718:InvalidPc
719:LaunchFailure:LAUNCH_FAILED 720:CooperativeLaunchTooLarge 721:TensorMemoryLeak 800:NotPermitted 801:NotSupported
802:SystemNotReady 803:SystemDriverMismatch 804:CompatNotSupportedOnDevice 805:MpsConnectionFailed 806:MpsRpcFailure
807:MpsServerNotReady 808:MpsMaxClientsReached 809:MpsMaxConnectionsReached 810:MpsClientTerminated
811:CdpNotSupported 812:CdpVersionMismatch 900:StreamCaptureUnsupported 901:StreamCaptureInvalidated
902:StreamCaptureMerge 903:StreamCaptureUnmatched 904:StreamCaptureUnjoined 905:StreamCaptureIsolation
906:StreamCaptureImplicit 907:CapturedEvent 908:StreamCaptureWrongThread 909:Timeout 910:GraphExecUpdateFailure
911:ExternalDevice 912:InvalidClusterSize 913:FunctionNotLoaded 914:InvalidResourceType
915:InvalidResourceConfiguration 916:-:KEY_ROTATION 999:Unknown
"""
"""Code, name of the runtime without ``cudaError``, and that of the driver without ``CUDA_ERROR_`` where it differs by
more than its spelling (driver_types.h, cuda.h of CUDA 13.0). Errors that no version since 11 returns are left out."""
ALREADY_REGISTERED = 712
OUT_OF_MEMORY = 2
LOSES_CONTEXT = frozenset({214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721})
"""After one of these, which a kernel caused that was launched earlier, each call of the process fails (driver_types.h:
"the process must be terminated and relaunched")."""


def _parsed() -> dict[int, tuple[str, str]]:
    names = {}
    for word in _NAMES.split():
        code, runtime, *driver = word.split(":")
        spelled = re.sub(r"(?<!^)(?=[A-Z])", "_", runtime).upper()
        names[int(code)] = f"cudaError{runtime}", f"CUDA_ERROR_{(driver or [spelled])[0]}"
    return names


_BY_CODE = _parsed()


def error_name(code: int, call: str) -> str:
    """The name of an error, as the runtime or the driver has it, by the name of the function that returned it; a code
    that has no name here is its own."""
    return _BY_CODE.get(code, (str(code), str(code)))[not call.startswith("cuda")]

"""CUDA's errors by their codes, which runtime and driver share."""

from __future__ import annotations

import re

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
ALREADY_REGISTERED, NOT_REGISTERED = 712, 713
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

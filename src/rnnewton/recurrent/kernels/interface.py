"""The C interface of native.cpp, field for field, as ctypes sees it."""

import ctypes
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int32, c_int64, c_uint8, c_void_p
from typing import ClassVar

MOST_LAYERS = 32
CELLS = {"rnn": 0, "lstm": 1, "lstm-original": 2, "mrnn": 3, "mlstm": 4}
FORMS = {"matching": 0, "squared": 1}
TAPS = {"output": 0, "cell": 1}
PRECISIONS = {"fp32": 0, "bf16": 1}

FloatPointer = POINTER(c_float)


class CArchitecture(Structure):
    _fields_: ClassVar = [
        ("cell", c_int32),
        ("depth", c_int32),
        ("hidden", c_int32 * MOST_LAYERS),
        ("inputs", c_int32),
        ("outputs", c_int32),
        ("real_inputs", c_int32),
        ("squared_loss", c_int32),
        ("direct_input", c_int32),
        ("direct_output", c_int32),
        ("bias", c_int32),
        ("output_bias", c_int32),
        ("squash_input", c_int32),
    ]


class CBatch(Structure):
    _fields_: ClassVar = [
        ("steps", c_int32),
        ("sequences", c_int32),
        ("ids", c_void_p),
        ("vectors", c_void_p),
        ("targets", c_void_p),
        ("values", c_void_p),
        ("scored", POINTER(c_uint8)),
        ("out", POINTER(c_void_p)),
        ("state", POINTER(c_void_p)),
    ]


class CTraffic(Structure):
    _fields_: ClassVar = [
        ("outputs", c_void_p),
        ("gates", POINTER(c_void_p)),
        ("xi", POINTER(c_void_p)),
        ("chi", POINTER(c_void_p)),
        ("m", POINTER(c_void_p)),
        ("out", POINTER(c_void_p)),
    ]


class COnlineTask(Structure):
    _fields_: ClassVar = [
        ("hidden", c_int32),
        ("outputs", c_int32),
        ("inputs", c_int32),
        ("sources", c_int32),
        ("traced", c_int32),
        ("steps", c_int32),
        ("squash", c_int32),
        ("squared_loss", c_int32),
        ("last_only", c_int32),
        ("rate", c_float),
        ("clip", c_float),
        ("ids", c_void_p),
        ("vectors", c_void_p),
        ("targets", c_void_p),
        ("values", c_void_p),
        ("gates", c_void_p),
        ("readout", c_void_p),
        ("output_bias", c_void_p),
        ("traces", c_void_p),
        ("out", c_void_p),
        ("cell", c_void_p),
    ]


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Gives every function its argument types, so that a wrong call is an error here, not a crash there."""
    pointers = POINTER(c_void_p)
    signatures: dict[str, tuple[list[object], object]] = {
        "rn_open": ([POINTER(CArchitecture), POINTER(CBatch), c_void_p, c_int, c_int], c_void_p),
        "rn_close": ([c_void_p], None),
        "rn_keep": ([c_void_p], None),
        "rn_forward": ([c_void_p, POINTER(c_double), c_void_p, pointers, pointers], c_int),
        "rn_gradient": ([c_void_p, c_void_p, POINTER(c_double)], c_int),
        "rn_product": ([c_void_p, c_void_p, c_void_p, c_float, c_int, c_int], c_int),
        "rn_traffic": ([c_void_p, POINTER(CTraffic)], c_int),
        "rn_predictions": ([c_void_p, c_void_p], None),
        "rn_stream_open": ([POINTER(CArchitecture), c_void_p], c_void_p),
        "rn_stream_close": ([c_void_p], None),
        "rn_stream_read": ([c_void_p, c_void_p, c_int, c_void_p], c_int),
        "rn_stream_state": ([c_void_p, pointers, pointers, c_int], None),
        "rn_stream_draw": ([c_void_p, c_double, c_void_p, c_double], c_int64),
        "rn_learn_online": ([POINTER(COnlineTask), POINTER(c_double)], c_int),
        "rn_parameters": ([POINTER(CArchitecture)], c_int64),
        "rn_stored_bytes": ([c_void_p], c_int64),
        "rn_workspace_bytes": ([c_void_p, c_int], c_int64),
        "rn_release": ([], None),
        "rn_vector_bytes": ([], c_int),
        "rn_fast_bf16": ([], c_int),
        "rn_peak": ([c_int, c_int, c_int64], c_double),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library

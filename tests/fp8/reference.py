"""Writes burn-rocm/nn/tests/quant/fp8.bin: what the package `ml_dtypes` makes of fp8.

    pip install ml_dtypes==0.6.0 numpy
    python3 tests/fp8/reference.py

The file has, in little-endian: for each type the 256 numbers of its codes (f32); the number of f32 inputs (u32), the
inputs (f32), and for each type their codes (u8), rounded to nearest even and not saturated.
"""

import pathlib

import ml_dtypes
import numpy

TYPES = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz]


def main():
    codes = numpy.arange(256, dtype=numpy.uint8)
    numbers = [codes.view(kind).astype(numpy.float32) for kind in TYPES]
    inputs = [numpy.array([0.0, -0.0, numpy.inf, -numpy.inf, numpy.nan, 1e30, -1e30, 1e-30, 1e-40, 3.4e38], "f4")]
    for values in numbers:
        values = numpy.unique(numpy.abs(values[numpy.isfinite(values)]))
        # Beyond the greatest, one more step.
        values = numpy.append(values, 2 * values[-1] - values[-2]).astype("f4")
        middles = (values[1:] + values[:-1]) / 2
        for near in (values, middles):
            for direction in (-numpy.inf, numpy.inf):
                inputs.append(numpy.nextafter(near, numpy.float32(direction)))
            inputs += [near, -near]
    inputs = numpy.concatenate(inputs).astype("<f4")
    inputs = inputs[numpy.unique(inputs.view("u4"), return_index=True)[1]]
    with numpy.errstate(all="ignore"):
        found = [inputs.astype(kind).view(numpy.uint8) for kind in TYPES]
    path = pathlib.Path(__file__).parents[2] / "burn-rocm/nn/tests/quant/fp8.bin"
    with path.open("wb") as file:
        for values in numbers:
            file.write(values.astype("<f4").tobytes())
        file.write(numpy.array([len(inputs)], "<u4").tobytes() + inputs.tobytes())
        for codes in found:
            file.write(codes.tobytes())


if __name__ == "__main__":
    main()

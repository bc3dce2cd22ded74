"""The one part of the package that is compiled; everything else is in pyproject.toml.

Optional: without a C++ compiler the package installs all the same, and the torch reference
computes.
"""

import platform
from glob import glob

from setuptools import Extension, setup

ARCHITECTURE_FLAGS = {
    "x86_64": ["-mavx2", "-mfma"],
    "AMD64": ["-mavx2", "-mfma"],
}

setup(
    ext_modules=[
        Extension(
            "sglang.srt.kernels.cpu._native",
            sources=sorted(glob("python/sglang/srt/kernels/cpu/*.cpp")),
            depends=["python/sglang/srt/kernels/cpu/vec.h"],
            extra_compile_args=[
                "-O3",
                "-std=c++17",
                "-ffp-contract=fast",
                "-fopenmp",
                *ARCHITECTURE_FLAGS.get(platform.machine(), []),
            ],
            extra_link_args=["-fopenmp"],
            language="c++",
            optional=True,
        )
    ]
)

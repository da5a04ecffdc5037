from sglang.standin import compile_deep_gemm

compile_deep_gemm()

from sglang.standin import offline

offline()

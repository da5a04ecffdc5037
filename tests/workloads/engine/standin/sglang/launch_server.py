from sglang.standin import serve

serve()

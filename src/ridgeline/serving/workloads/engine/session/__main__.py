import sys

from ridgeline.serving.workloads.engine.session.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

from ridgeline.cli.main import main

main()

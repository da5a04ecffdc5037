from ridgeline.cli.start import main

main()

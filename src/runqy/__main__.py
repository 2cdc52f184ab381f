"""`python -m runqy` is the command line."""

from runqy.cli.app import main

if __name__ == "__main__":
    main()

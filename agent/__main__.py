"""`python -m ranksight.agent`: the same as the `ranksight` command."""

from ranksight.agent.cli import main

if __name__ == "__main__":
    main()

"""For programs that use advisor: tools for agents over the Model Context Protocol, and budgets as tests of pytest."""

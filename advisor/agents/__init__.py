"""For programs that read advisor: tools over the Model Context Protocol."""

"""Views of a memory snapshot: the timeline of memory, what holds the peak, steps, and the allocator simulated."""

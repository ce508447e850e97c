"""What measures: the ledger of savings, and functions that need torch."""

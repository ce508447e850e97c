"""Callbacks that record inside other people's training loops. Each module needs the framework that it is named after."""

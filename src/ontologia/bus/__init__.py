"""The bus: handlers, their context, the run loop, schedules and dead letters."""

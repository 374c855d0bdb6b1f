"""Random data, programs and queries, compared with a plain model.

``pytest tests/property --hypothesis-profile=thorough`` searches for longer.
"""

"""What every backend must do.

To run the suite against another backend, list it in a module and name the list:
``pytest tests/conformance --backends my_package.my_module:BACKENDS``, where the list holds
``support.backends.Backend`` objects.
"""

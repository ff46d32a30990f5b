"""The words of a script. Each is one method `do_WORD`, its docstring the manual."""

"""Archives of what may be passed on, with stubs for the rest."""

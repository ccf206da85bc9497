"""Records to and from files, so that databases of several nodes become one."""

module example.org/nested

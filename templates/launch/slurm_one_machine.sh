machines_are_up() { true; }

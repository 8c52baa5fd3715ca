"""Numbers of the system calls that a program of the sandbox may not make, on the two machine types of Linux servers.

Source: the kernel's `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h`. From 424 on both
count alike; what is not among COMMON_ALLOWED there, or is newer than this table, does not exist in the sandbox.
"""

COMMON_FROM = 424
COMMON_ALLOWED = (436, 437, 439, 441, 449)  # close_range, openat2, faccessat2, epoll_pwait2, futex_waitv

# name: (x86_64, aarch64), None where a machine has no such call
DENIED: dict[str, tuple[int | None, int | None]] = {
    # other processes, this user's outside included where there are no namespaces; it has no children to send signals to
    **{"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131)},
    **{"rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240)},
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272)},
    **{"setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setaffinity": (203, 122)},
    **{"sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274)},
    # namespaces and file systems
    **{"unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41)},
    **{"chroot": (161, 51), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "quotactl": (179, 60)},
    **{"acct": (163, 89), "swapon": (167, 224), "swapoff": (168, 225), "fanotify_init": (300, 262)},
    # modes, owners, times and attributes: the devices that a program sees are the machine's own, and may be its user's
    **{"chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53)},
    **{"chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54)},
    **{"utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88)},
    **{"setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7)},
    **{"removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16)},
    # programs in the kernel, and its other large surfaces
    **{"bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "vmsplice": (278, 75)},
    **{"keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "lookup_dcookie": (212, 18)},
    **{"init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142)},
    **{"kexec_load": (246, 104), "kexec_file_load": (320, 294), "syslog": (103, 116), "personality": (135, 92)},
    **{"settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266)},
    **{"sethostname": (170, 161), "setdomainname": (171, 162), "vhangup": (153, 58)},
    **{"iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None)},
    **{"mbind": (237, 235), "migrate_pages": (256, 238), "move_pages": (279, 239), "set_mempolicy": (238, 237)},
    # memory that no limit of a process counts
    **{"memfd_create": (319, 279), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195)},
    **{"semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "mq_open": (240, 180)},
    **{"msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187)},
    # what the kernel counts for a user, or for all, however many programs there are
    **{"io_setup": (206, 0), "inotify_init": (253, None), "inotify_init1": (294, 26)},
    # the network; socketpair stays, because event loops wake themselves with one
    **{"socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201)},
    **{"accept": (43, 202), "accept4": (288, 242)},
    # who one is
    **{"setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143)},
    **{"setresuid": (117, 147), "setresgid": (119, 149), "setgroups": (116, 159), "capset": (126, 91)},
    **{"setfsuid": (122, 151), "setfsgid": (123, 152)},
    "execveat": (322, 281),
}

# name: (its numbers, position of an argument, values of it that are refused)
DENIED_BY_ARGUMENT: dict[str, tuple[tuple[int, int], int, tuple[int, ...]]] = {
    "prctl": ((157, 167), 0, (1,)),  # PR_SET_PDEATHSIG: it would outlive whoever started it
    # signals to others when a file is ready: F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP
    "fcntl": ((72, 25), 1, (8, 10, 15)),
    "ioctl": ((16, 29), 1, (0x8901, 0x8902, 0x5412)),  # and TIOCSTI: to type into a terminal
}
PRLIMIT = (302, 261)

CLONE = (56, 220)
CLONE3 = 435
FORKS: dict[str, tuple[int | None, int | None]] = {"fork": (57, None), "vfork": (58, None)}

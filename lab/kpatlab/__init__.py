"""The lab: hosts to test on, as network namespaces here or as QEMU guests with real distribution kernels.

    cache      where things lie, refusals, progress           knows nothing else
    debian     packages from the archive, unpacked, never installed
    initramfs  the first root of a guest
    kernel     one kernel, ready to boot
    emulator   which QEMU, with which options
    guest      boot, run one command, its exit code
    scenario   the file format of scenarios/
    topology   namespaces, links, routes ... from a scenario
    play       one scenario where the namespaces are: record, capture, traffic
    verdict    what was expected, what came
    peers      other tools, for comparisons
    cli        the command line; the only one that composes the others

Standard library only. `play` and `topology` run inside the guest too, from the same files.
"""

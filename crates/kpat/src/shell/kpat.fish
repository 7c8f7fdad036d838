# Completion of kpat for fish: asks kpat itself.
function __kpat_complete
    set -l words (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token --cut-at-cursor)
    env KPAT_COMPLETE=(math (count $words) - 1) $words[1] -- $words 2>/dev/null
end
complete --command kpat --no-files --keep-order --arguments '(__kpat_complete)'

#compdef kpat
# Completion of kpat for zsh: asks kpat itself.
_kpat() {
    local -a lines begun whole
    local line word about
    lines=("${(@f)$(KPAT_COMPLETE=$((CURRENT - 1)) ${words[1]} -- "${(@Q)words[1,CURRENT]}" 2>/dev/null)}")
    for line in $lines; do
        word=${${line%%$'\t'*}//:/\\:}
        about=${line#*$'\t'}
        [[ $line == *$'\t'* ]] && word+=":$about"
        if [[ ${line%%$'\t'*} == *[/:=] ]]; then begun+=("$word"); else whole+=("$word"); fi
    done
    ((${#whole})) && _describe -V kpat whole
    ((${#begun})) && _describe -V kpat begun -S ''
    return 0
}
# In a folder of functions this file is the function's body; sourced, it declares it.
if [[ ${funcstack[1]} == _kpat ]]; then _kpat "$@"; else compdef _kpat kpat; fi

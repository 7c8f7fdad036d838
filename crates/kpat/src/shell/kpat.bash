# Completion of kpat for bash: asks kpat itself.
_kpat() {
    local IFS=$'\n' words=() line=$COMP_LINE word gap i
    # What readline cuts at `:` and `=` is one word to kpat.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        gap=${line%%"$word"*}
        line=${line#"$gap$word"}
        if ((i > 0)) && [[ -z $gap && -n $word ]] && [[ $word == [:=]* || ${COMP_WORDS[i-1]} == *[:=] ]]; then
            words[${#words[@]}-1]+=$word
        elif ((i > 0)) && [[ -z $word && ${COMP_WORDS[i-1]} == *[:=] && ${COMP_LINE:COMP_POINT-1:1} != " " ]]; then
            : # the cursor stands right behind it
        else
            words+=("$word")
        fi
    done
    local last=${words[${#words[@]}-1]} begun=$2
    local cut=${last%"$begun"}
    [[ $begun == "$last" || $last == *"$begun" ]] || cut=
    COMPREPLY=($(KPAT_COMPLETE=$((${#words[@]} - 1)) "$1" -- "${words[@]}" 2>/dev/null | cut -f 1))
    [[ -n $cut ]] && COMPREPLY=("${COMPREPLY[@]#"$cut"}")
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[/:=] ]] && compopt -o nospace
    return 0
}
complete -o nosort -F _kpat kpat 2>/dev/null || complete -F _kpat kpat

# SPDX-License-Identifier: Apache-2.0
# bash completion for leat: commands, options (asked of `leat COMMAND --help`), names of sets, files.
_leat()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} leat=${COMP_WORDS[0]}
    local command='' operands=0 i word
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case $word in
        --socket | --job | --progress | --timeout | --name | --pool | --limit | --field | --root | --gpu | --cpus | --rails | --record | --to | --shard-size | --shard-count | --endpoint-url | --region | --profile | --ca-bundle | --store | --listen | --keys | --tls-cert | --tls-key | --domain | --capacity | --memory | --threads | --scrub | --scrub-rate | --remote | --remote-endpoint | --remote-region | --remote-profile | --remote-timeout | --remote-settings | --admin-token | --token | --mode | --check | --check-age | -n) ((i++)) ;;
        -*) ;;
        *) if [[ -z $command ]]; then command=$word; else ((operands++)); fi ;;
        esac
    done
    case $prev in
    --progress) mapfile -t COMPREPLY < <(compgen -W 'auto bar json none' -- "$cur"); return ;;
    --mode) mapfile -t COMPREPLY < <(compgen -W 'through back' -- "$cur"); return ;;
    --check) mapfile -t COMPREPLY < <(compgen -W 'never age always' -- "$cur"); return ;;
    --to) mapfile -t COMPREPLY < <(compgen -W 'dir tar npy' -- "$cur"); return ;;
    --shard-size | --shard-count | --job | --timeout | --name | --pool | --limit | --field | --gpu | --cpus | --rails | --endpoint-url | --region | --profile | --listen | --domain | --capacity | --memory | --threads | --scrub | --scrub-rate | --remote | --remote-endpoint | --remote-region | --remote-profile | --remote-timeout | --check-age | -n) return ;;
    --socket | --root | --record | --ca-bundle | --store | --keys | --tls-cert | --tls-key | --remote-settings | --admin-token | --token) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    esac
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$leat" $command --help 2>/dev/null |
            sed -n 's/^ .*\(--[a-z-]*\)[= ].*/\1/p')" -- "$cur")
    elif [[ -z $command || ($command == help && $operands == 0) ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$leat" --help 2>/dev/null |
            sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p')" -- "$cur")
    elif [[ $operands == 0 && $command =~ ^(append|ls|stat|cat|drop|verify)$ ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$leat" ls 2>/dev/null)" -- "$cur")
    elif [[ $command =~ ^(preload|index|convert|cp|doctor|append)$ ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "${cur#*=}")
    fi
}
complete -o filenames -F _leat leat

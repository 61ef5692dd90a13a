# Completion of hermes-bridges, bridge-coms and bridge-donut for bash.
# Made by `hermes-bridges completion bash`.

_hermes_bridges() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
    local key=${COMP_WORDS[0]##*/} verb=${COMP_WORDS[1]} words= i
    COMPREPLY=()
    case $prev in
        --env-file|--file|--output)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            return ;;
        --questions-dir|--root|--state-dir)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -d -- "$cur")
            return ;;
        --log-format)
            mapfile -t COMPREPLY < <(compgen -W "text json" -- "$cur")
            return ;;
        --age|--allow-from|--as|--context|--example|--hermes-profile|--instance|--keep|--lines|--max-sends|--name|--option|--poll-ms|--project|--qid|--run-as|--send-timeout|--size|--timeout|--to)
            return ;;
    esac
    if ((COMP_CWORD > 1)); then
        case "$key $verb" in
            "hermes-bridges check")
                # What follows -- is for the bridge.
                for ((i = 3; i < COMP_CWORD; i++)); do
                    [[ ${COMP_WORDS[i]} == -- ]] && key=bridge-${COMP_WORDS[2]}
                done
                [[ $key == hermes-bridges ]] && key+=" check" ;;
            "hermes-bridges rotate-logs")
                compopt -o default 2>/dev/null
                key+=" $verb" ;;
            "hermes-bridges "*) [[ " status check tail metrics reset-state doctor install-units rotate-logs completion " == *" $verb "* ]] && key+=" $verb" ;;
            "bridge-coms "*) [[ " list ask send await reply ping cancel questions answer " == *" $verb "* ]] && key+=" $verb" ;;
        esac
    fi
    case $key in
        "hermes-bridges") words="status check tail metrics reset-state doctor install-units rotate-logs completion --help --version" ;;
        "hermes-bridges status") words="coms donut --help --instance --json --state-dir" ;;
        "hermes-bridges check") words="coms donut --help" ;;
        "hermes-bridges tail") words="coms donut --help --instance --file --lines --no-follow --qid --json" ;;
        "hermes-bridges metrics") words="--help --output --state-dir" ;;
        "hermes-bridges reset-state") words="coms donut --help --instance --state-dir" ;;
        "hermes-bridges doctor") words="--help --json --state-dir" ;;
        "hermes-bridges install-units") words="--help --user --system --dry-run --force --run-as --root" ;;
        "hermes-bridges rotate-logs") words="--help --size --age --keep --no-gzip --copytruncate --only --force --verbose --example" ;;
        "hermes-bridges completion") words="bash --help" ;;
        "bridge-coms") words="list ask send await reply ping cancel questions answer --name --project --to --hermes-profile --timeout --poll-ms --questions-dir --send-timeout --max-sends --allow-from --log-format --check --version --help" ;;
        "bridge-coms list") words="--project --name --all --json --help" ;;
        "bridge-coms ask") words="--project --name --all --timeout --option --context --help" ;;
        "bridge-coms send") words="--project --name --all --timeout --option --context --await --help" ;;
        "bridge-coms await") words="--project --name --timeout --help" ;;
        "bridge-coms reply") words="--project --name --help" ;;
        "bridge-coms ping") words="--project --name --all --timeout --help" ;;
        "bridge-coms cancel") words="--project --name --all --help" ;;
        "bridge-coms questions") words="--project --questions-dir --show --json --help" ;;
        "bridge-coms answer") words="--as --questions-dir --force --help" ;;
        "bridge-donut") words="--env-file --check --reset-state --exit-on-auth-failure --log-format --version --help" ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}

complete -F _hermes_bridges hermes-bridges bridge-coms bridge-donut

# SPDX-License-Identifier: MIT OR Apache-2.0
# Hosts and containers made of namespaces, for demo_router.sh, which sources this. Root is not
# needed where the kernel lets users make user namespaces. Uses `started`, the process ids that the
# caller ends, and sets `outer`, the process in whose namespaces all links are made.

# Options of setpriv: no capability, and none to be had.
no_rights="--bounding-set=-all --inh-caps=-all --ambient-caps=-all --no-new-privs"

# until_true COMMAND...: repeats it until it succeeds; fails after a minute.
until_true() {
	tries=0
	until "$@"; do
		tries=$((tries + 1))
		[ "$tries" -lt 1200 ] || return 1
		sleep 0.05
	done
}

# sleeps PID: it runs sleep, so what made its namespaces has done so.
sleeps() {
	[ "$(cat "/proc/$1/comm" 2>/dev/null)" = sleep ]
}

# has_child PID: sets `child` to its first one, once that sleeps.
has_child() {
	child=
	read -r child _ 2>/dev/null <"/proc/$1/task/$1/children"
	[ -n "$child" ] && sleeps "$child"
}

# make_outer: a user namespace with every right over those that are made in it.
make_outer() {
	unshare -Urnm sleep 3600 &
	outer=$!
	started="$started $outer"
	until_true sleeps "$outer"
}

# make_place NAME: a host or a container: user, network, PID, IPC and mount namespaces of its own.
make_place() {
	nsenter -t "$outer" --preserve-credentials -U -n -m -- \
	    unshare -Urnmpif --mount-proc --kill-child sleep 3600 &
	started="$started $!"
	until_true has_child $! || return 1
	eval "pid_of_$1=$child"
	as_root "$1" ip link set lo up
}

pid_of() {
	eval "echo \$pid_of_$1"
}

# as_root NAME COMMAND...: with every right over its network and its mounts.
as_root() {
	at=$(pid_of "$1")
	shift
	nsenter -t "$at" --preserve-credentials -U -n -m -- "$@"
}

# inside NAME COMMAND...: as a program of a container, which has no capability. Never returns: for
# the background, or for a subshell.
inside() {
	at=$(pid_of "$1")
	shift
	# shellcheck disable=SC2086
	exec nsenter -t "$at" --preserve-credentials -U -n -m -p -i -- setpriv $no_rights "$@"
}

# on_host NAME COMMAND...: as a program of a host, which sees the processes of its containers;
# without a capability, too. Never returns.
on_host() {
	at=$(pid_of "$1")
	shift
	# shellcheck disable=SC2086
	exec nsenter -t "$at" --preserve-credentials -U -n -- setpriv $no_rights "$@"
}

# link A INTERFACE B INTERFACE: an Ethernet between two places, with packets of 9000 bytes.
link() {
	nsenter -t "$outer" --preserve-credentials -U -n -- ip link add "$2" mtu 9000 netns \
	    "$(pid_of "$1")" type veth peer name "$4" mtu 9000 netns "$(pid_of "$3")"
}

# address NAME INTERFACE ADDRESS/BITS: what a place has on an interface, which is up then.
address() {
	as_root "$1" ip addr add "$3" dev "$2" && as_root "$1" ip link set "$2" up
}

# address_of NAME: what it has on eth0.
address_of() {
	as_root "$1" ip -4 -o addr show dev eth0 | sed 's|.* inet \([0-9.]*\)/.*|\1|'
}

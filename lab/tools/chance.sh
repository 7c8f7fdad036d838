# Handovers in an order that nobody thought of: acts drawn by $CHANCE, one after the other or into one another. Read by cases.sh.
#     OUT/acts.log: seconds since 1970 and the act
# What an act waits for is a line of the supplicant, within a bound: on a busy machine it comes later. One that does not come is `not made`, which is no fault by itself: see cases.py.

roll() { r=$((RANDOM % $1)); }
act() { echo "$(date +%s.%6N): $*" >>"$out/acts.log"; doing="$*"; }
logged() { grep -c "w2: $1" "$out/supplicant.log"; }
comes() { # words, how many of them there were, seconds
	local end=$((SECONDS + $3))
	until [ "$(logged "$1")" -gt "$2" ]; do [ $SECONDS -lt $end ] || { not_made "$doing: no $1"; return; }; sleep 0.3; done
}
LEFT=CTRL-EVENT-DISCONNECTED
serves() { [ "$(status bssid)" = "$(cat $RUN/bssid2)" ] && echo 2 || echo 1; }
joined() { [ "$(status wpa_state)" = COMPLETED ]; }
# Until it is joined and data flows, or nothing came of it for so long; a busy machine does the same in more time.
settled() { # seconds
	local end=$((SECONDS + $1)) last=$((SECONDS + 4 * $1)) seen= now
	# Asked once: it may be sent away in the next moment by what was done before.
	until joined; do
		now=$(grep -c "State: \|SME: \|CTRL-EVENT" "$out/supplicant.log")
		[ "$now" = "$seen" ] || { seen=$now; end=$((SECONDS + $1)); }
		[ $SECONDS -lt $end ] && [ $SECONDS -lt $last ] || { not_made "not joined: $(status wpa_state)"; return; }
		sleep 0.2
	done
	more 8 $1
	sleep 2.5
}

act-roam() { local to=$((3 - $(serves))); act roam to $to; know; roam $to; }
act-again() { act roam to where it is; roam "$(serves)"; }
act-silent() {
	local at=$(serves) n=$(logged $LEFT)
	act $at falls silent; hwsim $at group 4; comes $LEFT $n 20; roll 5; sleep $r
	act $at is back; hwsim $at group 1
}
act-alone() {
	local n=$(logged $LEFT)
	act both fall silent
	hwsim 1 group 4; hwsim 2 group 4; wpa bss_flush 0 >/dev/null; comes $LEFT $n 20; roll 9; sleep $r
	roll 2; act $((r + 1)) is back
	hwsim $((r + 1)) group 1; settled 60; hwsim 1 group 1; hwsim 2 group 1
}
act-sent-away() { local at=$(serves); roll 9; act $at sends it away, reason $((r + 1)); ap $at deauthenticate $mac reason=$((r + 1)) >/dev/null; }
act-disassociated() { local at=$(serves); act $at disassociates it; ap $at disassociate $mac reason=8 >/dev/null; }
act-stops() { # beacons end with a farewell, and begin again
	local at=$(serves) n=$(logged $LEFT)
	act $at stops; ap $at disable >/dev/null; comes $LEFT $n 20; roll 4; sleep $r; act $at starts; ap $at enable >/dev/null
}
act-wrong() {
	[ $CHANCE_SECURITY = open ] && { act-sent-away; return; }
	local asks="SME: Trying to authenticate" n=$(logged "SME: Trying to authenticate")
	act wrong password
	wpa set_network 0 psk '"not-kpat-secret"' >/dev/null; wpa disconnect >/dev/null; wpa reconnect >/dev/null
	comes "$asks" $n 20; roll 4; sleep $((2 + r)); act right password
	wpa set_network 0 psk '"kpat-secret"' >/dev/null; wpa disconnect >/dev/null; wpa select_network 0 >/dev/null
}
act-leaves() { act leaves and returns; wpa disconnect >/dev/null; roll 3; sleep 0.$((r * 3 + 1)); wpa reconnect >/dev/null; }
act-shut() { act link set down; ip link set w2 down; roll 3; sleep $r.3; act link set up; ip link set w2 up; }
act-no-dhcp() {
	local n=$(logged CTRL-EVENT-CONNECTED)
	act no answer of DHCP
	kill -STOP "$(cat $RUN/dnsmasq.pid)"; ip addr flush dev w2 scope global; wpa disconnect >/dev/null; sleep 0.3; wpa reconnect >/dev/null
	comes CTRL-EVENT-CONNECTED $n 30; roll 6; sleep $((2 + r)); act DHCP answers; kill -CONT "$(cat $RUN/dnsmasq.pid)"
}
act-nak() { # for an address that is another network's
	act the lease is of another network
	ip addr flush dev w2 scope global; sed -i 's/fixed-address 10\.1\./fixed-address 10.77./' $RUN/dhclient.leases
	wpa disconnect >/dev/null; sleep 0.3; wpa reconnect >/dev/null
}
act-scan() { act a scan, and sent away in it; wpa scan >/dev/null; sleep 0.6; ap "$(serves)" deauthenticate $mac reason=3 >/dev/null; }
act-switch() { local at=$(serves); act $at changes its channel; ap $at chan_switch 5 $((2412 + 25 * (2 - at))) >/dev/null; sleep 3; ap $at chan_switch 5 $((2412 + 25 * (at - 1))) >/dev/null; }

case-chance() {
	RANDOM=$CHANCE
	local acts=(roam roam silent sent-away disassociated stops wrong leaves shut no-dhcp nak scan again alone)
	begin chance
	: >"$out/acts.log"
	for _ in 1 2 3 4 5 6 7 8; do
		[ $SECONDS -gt ${CHANCE_BUDGET:-330} ] && break
		roll ${#acts[@]}
		"act-${acts[$r]}"
		roll 4
		case $r in
		0) roll 9; sleep 0.$r ;;
		1) roll 4; sleep $r ;;
		*) settled 60 ;;
		esac
	done
	act end
	hwsim 1 group 1; hwsim 2 group 1
	settled 90
}

#!/bin/bash
# Handovers of the odd kinds, one after the other in one recording, called by handover.sh: failures, abrupt ends, handovers close together, DHCP that is slow, silent or refused by a conflict, two stations,
# interfaces that are no station.
#     cases.sh OUT GROUP|CASE...
# `chance` needs CHANCE, a number, and CHANCE_SECURITY.
# `cut` needs KPAT: recordings of one handover that begin and end in its middle, and one without the radio's events. BUDGET: no case begins later than so many seconds.
# OUT/cases.log: seconds since 1970 and which case begins; OUT/cases.planned: which were to be; OUT/not-made.log: seconds since 1970, the case, and what did not come about as it should have.
set -u
export PATH=$PATH:/usr/sbin:/sbin
HERE=$(dirname "$(readlink -f "$0")")
RUN=/run/handover
out=$1
shift
# `first ... &` would be a shell that has what it runs as a child: what is ended later begins with $FIRST.
FIRST="nsenter -t 1 -n -m"
first() { $FIRST "$@"; }
wpa() { wpa_cli -p $RUN/wpa -i w2 "$@"; }
wpa3() { wpa_cli -p $RUN/wpa3 -i w3 "$@"; }
ap() { local n=$1; shift; hostapd_cli -p $RUN/hostapd$n "$@"; }
status() { wpa status | sed -n "s/^$1=//p"; }
hwsim() { first sh -c "echo $3 > /sys/kernel/debug/ieee80211/$(cat $RUN/phy$1)/hwsim/$2"; }
echoes() { echo $(($(grep -c ' echo ' "$out/voice.log" 2>/dev/null) + 0)); }
not_made() { echo "$(date +%s.%6N): ${name:-before the first}: $1" | tee -a "$out/not-made.log"; }
anew() { # which access point: begins anew with what was set
	ap $1 disable >/dev/null
	ap $1 enable | grep -q OK || echo "$(date +%s.%6N): set-up: access point $1 did not begin anew" | tee -a "$out/not-made.log"
}
more() { # echoes, seconds
	local before=$(echoes) end=$((SECONDS + $2))
	while [ $SECONDS -lt $end ]; do [ "$(echoes)" -ge $((before + $1)) ] && return; sleep 0.2; done
	not_made "no echoes"
}
at() { [ "$(status wpa_state)" = COMPLETED ] && [ "$(status bssid)" = "$(cat $RUN/bssid$1)" ]; }
until_at() { # which, seconds
	local end=$((SECONDS + $2))
	while [ $SECONDS -lt $end ]; do at $1 && return; sleep 0.2; done
	not_made "not at access point $1"
}
said() { # words, seconds: until the supplicant has said them since the case began
	local end=$((SECONDS + $2))
	while [ $SECONDS -lt $end ]; do tail -n +$((lines + 1)) "$out/supplicant.log" | grep -q "$1" && return; sleep 0.05; done
	not_made "the supplicant did not log $1"
}
know() {
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		[ "$(wpa scan_results | grep -c -e "^$(cat $RUN/bssid1)" -e "^$(cat $RUN/bssid2)")" -ge 2 ] && return
		wpa scan freq=2412,2437 >/dev/null
		sleep 1
	done
}
finish() {
	echo "$(date +%s.%6N): case end" >>"$out/cases.log"
	cp $RUN/bssid1 $RUN/bssid2 $RUN/bssid3 $RUN/bssid4 "$out"
	exit
}
# On a machine that others use there may be no time for all.
BUDGET=${BUDGET:-900}
between() { echo "$(date +%s.%6N): case between" >>"$out/cases.log"; }
begin() { # name: at the first access point, with data
	name=$1
	[ $SECONDS -gt $BUDGET ] && { not_made "no time for it"; finish; }
	between
	hwsim 1 group 1; hwsim 2 group 1
	know
	at 1 || { wpa roam "$(cat $RUN/bssid1)" >/dev/null; until_at 1 30; }
	more 20 40
	lines=$(wc -l <"$out/supplicant.log")
	echo "$(date +%s.%6N): case $name" >>"$out/cases.log"
}
over() { more 12 ${1:-30}; sleep 2.5; }
roam() { wpa roam "$(cat $RUN/bssid$1)" >/dev/null; }
mac=$(cat $RUN/bssid3)
dhcp_server() { # further words; as handover.sh starts it
	$FIRST ip netns exec ds dnsmasq --port=0 --keep-in-foreground --conf-file=/dev/null --user=root --dhcp-authoritative --no-ping \
		--dhcp-range=10.1.0.50,10.1.0.99,255.255.255.0,1h --interface=br0 --log-dhcp --log-facility="$out/dnsmasq.log" --dhcp-leasefile=$RUN/leases --pid-file= "$@" >/dev/null 2>&1 </dev/null &
	echo $! >$RUN/dnsmasq.pid
}
no_dhcp_server() { kill "$(cat $RUN/dnsmasq.pid)"; while kill -0 "$(cat $RUN/dnsmasq.pid)" 2>/dev/null; do sleep 0.1; done; }
record() { # name, profile, further words: until it records
	local name=$1 profile=$2
	shift 2
	$FIRST "$KPAT" record -q --force -o "$out/$name.kbl" -p "$profile" "$@" --detail steps --netns sta -f 'udp or icmp or arp' --ready-file $RUN/$name.ready >"$out/$name.out" 2>&1 &
	eval "pid_$name=$!"
	for _ in $(seq 300); do [ -e $RUN/$name.ready ] && return; sleep 0.1; done
	not_made "no recording $name"
}

case-together() {
	begin together
	roam 2; said "CTRL-EVENT-CONNECTED.*$(cat $RUN/bssid2)" 10; roam 1; until_at 1 20; over
}

case-roam-fails() {
	begin roam-fails
	# The kernel asks only an access point that it has heard within 30 s.
	wpa scan freq=2437 >/dev/null; sleep 2; hwsim 2 group 4; roam 2; sleep 4; until_at 1 30; hwsim 2 group 1; over
}

case-sent-away-in-handshake() {
	begin sent-away-in-handshake
	# With another password the handshake has no end before the access point sends the station away.
	wpa set_network 0 psk '"not-kpat-secret"' >/dev/null; roam 2; said "Associated with $(cat $RUN/bssid2)" 10; sleep 0.3; ap 2 deauthenticate $mac reason=8 >/dev/null; sleep 1
	wpa set_network 0 psk '"kpat-secret"' >/dev/null; wpa select_network 0 >/dev/null; sleep 4; over
}

case-sent-away-at-once() {
	begin sent-away-at-once
	roam 2; said "CTRL-EVENT-CONNECTED.*$(cat $RUN/bssid2)" 10; ap 2 deauthenticate $mac reason=5 >/dev/null; sleep 4; over
}

case-same-again() {
	begin same-again
	roam 1; said "CTRL-EVENT-CONNECTED" 10; sleep 2; over
}

case-during-a-scan() {
	begin during-a-scan
	wpa scan >/dev/null; said "nl80211: Scan trigger\|Scan requested\|Starting AP scan\|Event SCAN_STARTED" 5; sleep 1; ap 1 deauthenticate $mac reason=3 >/dev/null; sleep 2; over 40
}

case-hidden() {
	begin hidden
	ap 2 set ignore_broadcast_ssid 1 >/dev/null; ap 2 update_beacon >/dev/null; wpa bss_flush 0 >/dev/null; hwsim 1 group 4; sleep 3; until_at 2 60; over 40
	ap 2 set ignore_broadcast_ssid 0 >/dev/null; ap 2 update_beacon >/dev/null
}

case-channel-switch() {
	begin channel-switch
	ap 1 chan_switch 10 2422 >/dev/null; sleep 4; over
	ap 1 chan_switch 10 2412 >/dev/null; sleep 3
}

case-same-channel() {
	begin same-channel
	ap 2 chan_switch 5 2412 >/dev/null; sleep 2; wpa scan freq=2412 >/dev/null; sleep 1; roam 2; until_at 2 20; over
	between
	ap 2 chan_switch 5 2437 >/dev/null; sleep 2
}

case-shut() {
	begin shut
	ip link set w2 down; sleep 1; ip link set w2 up; sleep 2; over 40
}

case-rfkill() {
	# A radio's switch is seen in the namespace that has the radio.
	sta() { first ip netns exec sta sh -c "$1"; }
	soft=$(sta "grep -lx $(cat $RUN/phy3) /sys/class/rfkill/*/name" | sed 's/name$/soft/')
	begin rfkill
	[ "$soft" ] || { not_made "no switch of $(cat $RUN/phy3)"; return; }
	# Who shuts it by the switch opens it again by hand, as a network manager does; where the supplicant has, that changes nothing.
	sta "echo 1 >$soft"; sleep 1; sta "echo 0 >$soft"; sleep 1; ip link set w2 up; sleep 1; over 40
}

case-removed() {
	begin removed
	iw dev w2 del; sleep 1; first sh -c "ip netns exec sta iw phy $(cat $RUN/phy3) interface add w2 type managed"; sleep 1; ip link set w2 up
	sleep 3; status wpa_state | grep -q . || { wpa_supplicant -D nl80211 -i w2 -c $RUN/wpa.conf -d -t >>"$out/supplicant.log" 2>&1 & sleep 3; wpa_cli -p $RUN/wpa -i w2 -a $RUN/action.sh >/dev/null 2>&1 & }
	over 60
}

case-two-stations() {
	# Another station on the same host, at the same time.
	sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2
	sed "s#$RUN/wpa#$RUN/wpa3#" $RUN/wpa.conf >$RUN/wpa3.conf
	ip link set w3 up
	wpa_supplicant -D nl80211 -i w3 -c $RUN/wpa3.conf -d -t >"$out/supplicant3.log" 2>&1 &
	other=$!
	for _ in $(seq 100); do [ "$(wpa3 status 2>/dev/null | sed -n 's/^wpa_state=//p')" = COMPLETED ] && break; sleep 0.2; done
	ip addr add 10.1.0.33/24 dev w3
	ping -n -I w3 -i 0.1 10.1.0.1 >"$out/ping3.log" 2>&1 &
	ping=$!
	begin two-stations
	wpa3 scan freq=2412,2437 >/dev/null; sleep 2
	from3=$(wpa3 status | sed -n 's/^bssid=//p'); to3=2; [ "$from3" = "$(cat $RUN/bssid2)" ] && to3=1
	roam 2; wpa3 roam "$(cat $RUN/bssid$to3)" >/dev/null; until_at 2 20; over
	between
	kill $ping $other; wait $ping $other
	ip addr flush dev w3; ip link set w3 down
}

case-access-point() {
	begin access-point
	printf 'interface=w3\ndriver=nl80211\nssid=other\nhw_mode=g\nchannel=11\nctrl_interface=%s/hostapd3\nwpa=2\nwpa_key_mgmt=WPA-PSK\nrsn_pairwise=CCMP\nwpa_passphrase=kpat-other\n' $RUN >$RUN/ap3.conf
	hostapd -t $RUN/ap3.conf >"$out/hostapd3.log" 2>&1 &
	ap3=$!
	sleep 3
	printf 'ctrl_interface=%s/wpa4\nnetwork={\n ssid="other"\n psk="kpat-other"\n scan_freq=2462\n}\n' $RUN >$RUN/wpa4.conf
	first ip -n air link set w4 up
	$FIRST ip netns exec air wpa_supplicant -D nl80211 -i w4 -c $RUN/wpa4.conf -t >"$out/supplicant4.log" 2>&1 &
	guest=$!
	for _ in $(seq 100); do grep -q CTRL-EVENT-CONNECTED "$out/supplicant4.log" && break; sleep 0.2; done
	grep -q CTRL-EVENT-CONNECTED "$out/supplicant4.log" || not_made "no station at w3"
	wpa_cli -p $RUN/wpa4 -i w4 disconnect >/dev/null; sleep 1; wpa_cli -p $RUN/wpa4 -i w4 reconnect >/dev/null; sleep 4
	kill $guest $ap3; wait $guest $ap3; sleep 1
}

case-mesh() {
	begin mesh
	ip link set w3 down; iw dev w3 set type mp; ip link set w3 up; iw dev w3 mesh join lab freq 2462
	first ip -n air link set w4 down; first ip netns exec air iw dev w4 set type mp; first ip -n air link set w4 up; first ip netns exec air iw dev w4 mesh join lab freq 2462
	sleep 4; iw dev w3 station dump >"$out/mesh.txt" 2>&1; first ip netns exec air iw dev w4 mesh leave; sleep 1; iw dev w3 mesh leave; sleep 1
	grep -q ESTAB "$out/mesh.txt" || not_made "no peer in the mesh"
	ip link set w3 down; iw dev w3 set type managed
}

case-conflict() {
	begin conflict
	# Others than the server's, which gives no address that it has itself.
	touch $RUN/udhcpc
	for n in $(seq 50 99); do first ip -n ap1 addr add 10.1.0.$n/32 dev br0; done
	ip addr flush dev w2 scope global; wpa disconnect >/dev/null; sleep 0.5; wpa reconnect >/dev/null; until_at 1 20; sleep 12
	for n in $(seq 50 99); do first ip -n ap1 addr del 10.1.0.$n/32 dev br0; done
	over 60
	rm $RUN/udhcpc
}

case-duplicate-v6() {
	begin duplicate-v6
	first ip -n ds addr add fd07:1::9/64 dev br0 nodad
	# The lab's namespaces look for none, and while there is no carrier the kernel looks for no duplicates. The correspondent answers nothing meanwhile: data would end the handover before.
	sysctl -qw net.ipv6.conf.w2.accept_dad=1
	kill -STOP "$(cat $RUN/echo.pid)"
	roam 2; until_at 2 30; ip addr add fd07:1::9/64 dev w2; sleep 3
	kill -CONT "$(cat $RUN/echo.pid)"
	over 40
	ip addr del fd07:1::9/64 dev w2 2>/dev/null; first ip -n ds addr del fd07:1::9/64 dev br0
	sysctl -qw net.ipv6.conf.w2.accept_dad=0
}

case-no-ack() {
	begin no-ack
	no_dhcp_server; rm -f $RUN/dhclient.leases; ip addr flush dev w2 scope global
	$FIRST ip netns exec ds python3 "$HERE/offers.py" br0 10.1.0.1 10.1.0.77 &
	offers=$!
	wpa disconnect >/dev/null; sleep 0.5; wpa reconnect >/dev/null; until_at 1 20; sleep 15; kill $offers; dhcp_server; over 60
}

case-dhcp-late() {
	begin dhcp-late
	kill -STOP "$(cat $RUN/dnsmasq.pid)"; ip addr flush dev w2 scope global; wpa disconnect >/dev/null; sleep 0.5; wpa reconnect >/dev/null; until_at 1 20; sleep 6; kill -CONT "$(cat $RUN/dnsmasq.pid)"; over 60
}

case-cut() {
	begin cut
	record whole wifi,path; record early wifi,path; record packets path
	more 20 30
	# Nothing is in range until the later recording runs.
	wpa bss_flush 0 >/dev/null; hwsim 2 group 4; hwsim 1 group 4; said "CTRL-EVENT-DISCONNECTED" 30
	kill -INT $pid_early; record late wifi,path; hwsim 2 group 1
	until_at 2 60; over 40
	kill -INT $pid_whole $pid_late $pid_packets; wait $pid_whole $pid_late $pid_packets $pid_early
}

case-vlan() {
	# What flows does so by a VLAN above the radio's interface; a handover is of both.
	first ip -n ds link add link br0 name br0.5 type vlan id 5; first ip -n ds addr add 10.5.0.1/24 dev br0.5; first ip -n ds link set br0.5 up
	ip link add link w2 name w2.5 type vlan id 5; ip addr add 10.5.0.2/24 dev w2.5; ip link set w2.5 up
	ip route replace 10.9.0.2/32 via 10.5.0.1 dev w2.5
	begin vlan
	roam 2; until_at 2 20; over
	hwsim 2 group 4; said "CTRL-EVENT-DISCONNECTED" 30; until_at 1 60; over 40
	between
	ip route del 10.9.0.2/32; ip link del w2.5; first ip -n ds link del br0.5; hwsim 2 group 1
}

case-roam-back() {
	begin roam-back
	roam 2; sleep 0.3; roam 1; until_at 1 30; over
}

case-roam-in-scan() {
	begin roam-in-scan
	wpa scan >/dev/null; said "nl80211: Scan trigger\|Scan requested\|Starting AP scan\|Event SCAN_STARTED" 5; sleep 0.5; roam 2; until_at 2 30; over
}

case-gone-in-handshake() {
	begin gone-in-handshake
	# With another password the handshake has no end before the access point is gone.
	wpa set_network 0 psk '"not-kpat-secret"' >/dev/null; roam 2; said "Associated with $(cat $RUN/bssid2)" 10; sleep 0.3; hwsim 2 group 4
	wpa set_network 0 psk '"kpat-secret"' >/dev/null; sleep 6; wpa select_network 0 >/dev/null; until_at 1 60; over 40
}

case-shut-in-handshake() {
	begin shut-in-handshake
	wpa set_network 0 psk '"not-kpat-secret"' >/dev/null; roam 2; said "Associated with $(cat $RUN/bssid2)" 10; sleep 0.3; ip link set w2 down
	wpa set_network 0 psk '"kpat-secret"' >/dev/null; sleep 1; ip link set w2 up; sleep 1; wpa select_network 0 >/dev/null; sleep 2; over 60
}

case-shut-in-scan() {
	begin shut-in-scan
	wpa bss_flush 0 >/dev/null; hwsim 2 group 4; hwsim 1 group 4; said "CTRL-EVENT-DISCONNECTED" 30; sleep 2; ip link set w2 down; sleep 1; hwsim 1 group 1; ip link set w2 up; until_at 1 60; over 40
}

case-reconnect-late() {
	begin reconnect-late
	wpa disconnect >/dev/null; sleep 20; wpa reconnect >/dev/null; over 40
}

case-left-then-shut() {
	begin left-then-shut
	wpa disconnect >/dev/null; sleep 0.8; ip link set w2 down; sleep 1; ip link set w2 up; sleep 1; wpa reconnect >/dev/null; over 40
}

case-ended-supplicant() {
	begin ended-supplicant
	wpa terminate >/dev/null; sleep 4
	wpa_supplicant -D nl80211 -i w2 -c $RUN/wpa.conf -d -t >>"$out/supplicant.log" 2>&1 &
	sleep 2; wpa_cli -p $RUN/wpa -i w2 -a $RUN/action.sh >/dev/null 2>&1 &
	sleep 2; over 60
	wpa set_network 0 scan_ssid 1 >/dev/null
}

case-other-network() {
	between
	ap 2 set ssid kpat-other >/dev/null; ap 2 set wpa_passphrase kpat-secret >/dev/null; anew 2
	wpa add_network >/dev/null; wpa set_network 1 ssid '"kpat-other"' >/dev/null; wpa set_network 1 psk '"kpat-secret"' >/dev/null; wpa set_network 1 scan_freq '2412 2437' >/dev/null
	sleep 1; wpa scan freq=2412,2437 >/dev/null; sleep 2
	begin other-network
	wpa select_network 1 >/dev/null; said "CTRL-EVENT-CONNECTED" 30; over 40
	between
	wpa select_network 0 >/dev/null; sleep 1; wpa remove_network 1 >/dev/null
	ap 2 set ssid kpat >/dev/null; ap 2 set wpa_passphrase kpat-secret >/dev/null; anew 2
	until_at 1 40
}

case-static() {
	between
	cp $RUN/action.sh $RUN/action.kept; printf '#!/bin/sh\n' >$RUN/action.sh
	kill "$(cat $RUN/dhclient.pid)"; ip addr flush dev w2 scope global; ip addr add 10.1.0.60/24 dev w2; ip route replace default via 10.1.0.1
	begin static
	roam 2; until_at 2 20; over
	between
	cp $RUN/action.kept $RUN/action.sh; chmod +x $RUN/action.sh
}

case-renamed() {
	begin renamed
	# Since 6.2 also while it is up; a supplicant cannot join by it meanwhile.
	ip link set w2 name w2x && { sleep 2; ip link set w2x name w2; sleep 1; }
	roam 2; until_at 2 20; over
}

case-killed-access-point() {
	# No farewell: the kernel stops its beacons, and the one that comes begins with a farewell.
	begin killed-access-point
	first sh -c "kill -9 $(cat $RUN/ap1.pid)"; sleep 1
	$FIRST ip netns exec ap1 hostapd -t -d $RUN/ap1.conf >>"$out/hostapd1.log" 2>&1 &
	echo $! >$RUN/ap1.pid
	sleep 4; over 60
}

case-sent-away-in-dhcp() {
	begin sent-away-in-dhcp
	kill -STOP "$(cat $RUN/dnsmasq.pid)"; ip addr flush dev w2 scope global; wpa disconnect >/dev/null; sleep 0.5; wpa reconnect >/dev/null; until_at 1 20; sleep 5
	ap 1 deauthenticate $mac reason=7 >/dev/null; sleep 4; kill -CONT "$(cat $RUN/dnsmasq.pid)"; over 60
}

case-nothing() {
	# What ends no link.
	begin nothing
	ap 1 raw REKEY_GTK >/dev/null; sleep 1; iw dev w2 set power_save on; sleep 0.5; iw dev w2 set power_save off; ip link set w2 mtu 1400; sleep 0.5; ip link set w2 mtu 1500
	ip link set w2 promisc on; sleep 0.3; ip link set w2 promisc off; wpa scan freq=2412 >/dev/null; sleep 1; ip neigh flush dev w2; sleep 1; over
}

case-flow-pauses() {
	# The application sends nothing for a time in which the link stands, and the roam is in it.
	begin flow-pauses
	kill -STOP $VOICE; sleep 4; roam 2; until_at 2 20; sleep 3; kill -CONT $VOICE; over
}

transitions() { # the first access point may ask its stations to go (802.11v)
	between
	ap 1 set bss_transition 1 >/dev/null; anew 1; sleep 1
}

case-asked-to-go() {
	transitions
	begin asked-to-go
	ap 1 bss_tm_req $mac pref=1 abridged=1 neighbor="$(cat $RUN/bssid2)",0x0000,81,6,7,0301ff >/dev/null; said "CTRL-EVENT-CONNECTED.*$(cat $RUN/bssid2)" 20; over
}

case-moved() {
	begin moved
	first ip netns add elsewhere 2>/dev/null; first ip netns exec sta iw phy "$(cat $RUN/phy3)" set netns name elsewhere; sleep 3
	first ip netns exec elsewhere iw phy "$(cat $RUN/phy3)" set netns "$$"; sleep 1; ip link set w2 up; sleep 3
	status wpa_state | grep -q . || { wpa_supplicant -D nl80211 -i w2 -c $RUN/wpa.conf -d -t >>"$out/supplicant.log" 2>&1 & sleep 3; wpa_cli -p $RUN/wpa -i w2 -a $RUN/action.sh >/dev/null 2>&1 & }
	over 60
}

case-asked-refused() {
	transitions
	begin asked-refused
	# To where there is nothing: the station looks, and refuses. That it goes elsewhere afterwards is its own choice.
	heard=$(wc -l <"$out/hostapd1.log")
	ap 1 bss_tm_req $mac pref=1 abridged=1 valid_int=255 neighbor=02:00:00:00:77:00,0x0000,81,6,7,0301ff >/dev/null
	for _ in $(seq 200); do tail -n +$((heard + 1)) "$out/hostapd1.log" | grep -q "BSS-TM-RESP" && break; sleep 0.1; done
	tail -n +$((heard + 1)) "$out/hostapd1.log" | grep "BSS-TM-RESP" | grep -vq "status_code=0 " || not_made "the station did not refuse"
	sleep 1; roam 2; said "CTRL-EVENT-CONNECTED.*$(cat $RUN/bssid2)" 20; over
}

case-reassociate() {
	begin reassociate
	wpa reassociate >/dev/null; said "CTRL-EVENT-CONNECTED" 20; over
}

case-unprotected() {
	between
	wpa disconnect >/dev/null; ap 1 set ieee80211w 1 >/dev/null; anew 1; wpa set_network 0 ieee80211w 1 >/dev/null; wpa reconnect >/dev/null; until_at 1 30
	first ip -n air link set w4 down; first ip netns exec air iw dev w4 set type monitor; first ip -n air link set w4 up; first ip netns exec air iw dev w4 set freq 2412
	begin unprotected
	[ "$(status pmf)" ] || not_made "no protected management frames"
	# Anybody's, in the access point's name: with reason 7 the station asks the access point, which answers.
	for reason in 3 7; do $FIRST ip netns exec air python3 "$HERE/farewell.py" w4 "$(cat $RUN/bssid1)" $mac $reason 3; sleep 1; done
	said "SA Query" 5; sleep 3; over
	between
	first ip -n air link set w4 down; first ip netns exec air iw dev w4 set type managed
}

case-wired() {
	between
	first ip -n sta link add e0 type veth peer name e1 netns ds
	# With a spanning tree a port listens and learns before it forwards, 2 s each; without one the kernel forwards at once, whatever state it is given.
	ip link add br9 type bridge stp_state 1 forward_delay 200; ip link set e0 master br9; ip link set e0 up; first ip -n ds link set e1 up; ip link set br9 up; sleep 6
	begin wired
	first ip -n ds link set e1 down; sleep 2; first ip -n ds link set e1 up; sleep 8
	between
	ip link del e0; ip link del br9
}

case-cuts() {
	# The handshake goes on without end as long as the access point has another key.
	right=$(python3 -c 'import hashlib; print(hashlib.pbkdf2_hmac("sha1", b"kpat-secret", b"kpat", 4096, 32).hex())')
	begin cuts
	# Files of two seconds: of five, some begin and some end in it.
	record keys wifi --rotate-time 2s
	ap 2 set wpa_psk $(printf '%064d' 7) >/dev/null
	roam 2; said "Associated with $(cat $RUN/bssid2)" 10; sleep 5
	[ "$(status wpa_state)" = 4WAY_HANDSHAKE ] || not_made "keys: the handshake was given up"
	ap 2 set wpa_psk $right >/dev/null; said "CTRL-EVENT-CONNECTED.*$(cat $RUN/bssid2)" 30; over
	kill -INT $pid_keys; wait $pid_keys
	at 1 || { roam 1; until_at 1 20; }; more 5 20
	record dhcp_end wifi,path
	local asked=$(grep -c "DHCP[DR].* on w2 " "$out/dhcp.log")
	kill -STOP "$(cat $RUN/dnsmasq.pid)"; ip addr flush dev w2 scope global; wpa disconnect >/dev/null; sleep 0.5; wpa reconnect >/dev/null; until_at 1 20
	for _ in $(seq 300); do [ "$(grep -c "DHCP[DR].* on w2 " "$out/dhcp.log")" -gt $asked ] && break; sleep 0.1; done
	[ "$(grep -c "DHCP[DR].* on w2 " "$out/dhcp.log")" -gt $asked ] || not_made "dhcp_end: the client did not ask"
	kill -INT $pid_dhcp_end; wait $pid_dhcp_end; kill -CONT "$(cat $RUN/dnsmasq.pid)"; over 60
	record scan_end wifi
	wpa bss_flush 0 >/dev/null; wpa set_network 0 scan_freq '' >/dev/null; hwsim 2 group 4; hwsim 1 group 4; lines=$(wc -l <"$out/supplicant.log"); said "CTRL-EVENT-DISCONNECTED" 30
	said "Event SCAN_STARTED" 20; sleep 1; kill -INT $pid_scan_end; wait $pid_scan_end
	wpa set_network 0 scan_freq '2412 2437' >/dev/null; hwsim 1 group 1; hwsim 2 group 1; over 90
}

case-no-route() {
	between
	record unsaid wifi,path
	begin no-route
	# Without an address there is no way to the correspondent: each send fails, and the link stands for a while.
	ip addr flush dev w2 scope global; sleep 2; wpa disconnect >/dev/null; sleep 1; wpa reconnect >/dev/null; over 60
	kill -INT $pid_unsaid; wait $pid_unsaid
}

case-full() {
	begin full
	ap 2 set max_num_sta 0 >/dev/null
	roam 2; sleep 4; until_at 1 40
	ap 2 set max_num_sta 10 >/dev/null; over 40
}

case-association-refused() {
	between
	ap 2 set ieee80211n 1 >/dev/null; ap 2 set require_ht 1 >/dev/null; anew 2; wpa set_network 0 disable_ht 1 >/dev/null; sleep 1; wpa scan freq=2437 >/dev/null; sleep 1
	begin association-refused
	roam 2; sleep 4; until_at 1 40; over 40
	between
	wpa set_network 0 disable_ht 0 >/dev/null; ap 2 set require_ht 0 >/dev/null; ap 2 set ieee80211n 0 >/dev/null; anew 2; wpa bss_flush 0 >/dev/null; sleep 1
}

case-denied() {
	begin denied
	ap 2 deny_acl ADD_MAC $mac >/dev/null; roam 2; sleep 4; until_at 1 40; ap 2 deny_acl CLEAR >/dev/null; over 40
}

case-disassociated-idle() {
	begin disassociated-idle
	kill -STOP $VOICE; sleep 5; ap 1 disassociate $mac reason=4 >/dev/null; said "CTRL-EVENT-CONNECTED" 30; sleep 4; kill -CONT $VOICE; over 60
}

case-static-silent() {
	between
	cp $RUN/action.sh $RUN/action.kept; printf '#!/bin/sh\n' >$RUN/action.sh
	kill "$(cat $RUN/dhclient.pid)"; ip addr flush dev w2 scope global; ip addr add 10.1.0.60/24 dev w2; ip route replace default via 10.1.0.1
	begin static-silent
	hwsim 1 group 4; said "CTRL-EVENT-DISCONNECTED" 30; until_at 2 60; over 40
	between
	cp $RUN/action.kept $RUN/action.sh; chmod +x $RUN/action.sh
}

secured() { # key management, whether management frames are protected, further words for each access point: both begin anew with it
	local ways=$1 protected=$2 n
	shift 2
	between
	wpa disconnect >/dev/null
	for n in 1 2; do
		for word in wpa_key_mgmt="$ways" ieee80211w="$protected" "$@"; do ap $n set "${word%%=*}" "${word#*=}" >/dev/null; done
		anew $n
	done
	wpa set_network 0 key_mgmt "$ways" >/dev/null; wpa set_network 0 ieee80211w "$protected" >/dev/null; wpa bss_flush 0 >/dev/null; sleep 1; wpa reconnect >/dev/null
	for _ in $(seq 100); do [ "$(status wpa_state)" = COMPLETED ] && return; sleep 0.2; done
	not_made "not connected with $ways"
}

case-sae-again() {
	secured SAE 2 sae_password=kpat-secret
	begin sae-again
	# Back at the first its keys are known; then they are forgotten there, and here they are not.
	roam 2; until_at 2 30; more 15 20; roam 1; until_at 1 30; more 15 20
	roam 2; until_at 2 30; more 15 20; ap 1 pmksa_flush >/dev/null; roam 1; until_at 1 40; over
	secured WPA-PSK 0
}

case-eap-again() {
	printf '"kpat" PWD "kpat-secret"\n' >$RUN/users
	wpa set_network 0 eap PWD >/dev/null; wpa set_network 0 identity '"kpat"' >/dev/null; wpa set_network 0 password '"kpat-secret"' >/dev/null
	secured WPA-EAP 0 ieee8021x=1 eap_server=1 eap_user_file=$RUN/users
	begin eap-again
	roam 2; until_at 2 30; more 15 20; roam 1; until_at 1 30; more 15 20
	ap 2 pmksa_flush >/dev/null; roam 2; until_at 2 30; over
	secured WPA-PSK 0 ieee8021x=0 eap_server=0
}

case-over-the-ds() {
	local n
	for n in 1 2; do for word in mobility_domain=a1b2 nas_identifier=ap$n ft_psk_generate_local=1 ft_over_ds=1; do ap $n set "${word%%=*}" "${word#*=}" >/dev/null; done; done
	secured FT-PSK 0
	begin over-the-ds
	wpa ft_ds "$(cat $RUN/bssid2)" >/dev/null; until_at 2 20; over
	secured WPA-PSK 0
}

case-no-handshake() {
	between
	# An open network which says that it has keys: it takes the station, and waits for nothing.
	ap 2 set wpa 0 >/dev/null; ap 2 set vendor_elements 30140100000fac040100000fac040100000fac020000 >/dev/null; anew 2; sleep 1; wpa scan freq=2437 >/dev/null; sleep 1
	begin no-handshake
	roam 2; said "Associated with $(cat $RUN/bssid2)" 10; sleep 11; until_at 1 40; over 40
	between
	ap 2 set vendor_elements '' >/dev/null; ap 2 set wpa 2 >/dev/null; ap 2 set wpa_key_mgmt WPA-PSK >/dev/null; ap 2 set rsn_pairwise CCMP >/dev/null; anew 2; wpa bss_flush 0 >/dev/null; sleep 1
}

case-lease-refused() {
	begin lease-refused
	no_dhcp_server; ip addr flush dev w2 scope global
	$FIRST ip netns exec ds python3 "$HERE/offers.py" br0 10.1.0.1 none &
	offers=$!
	# Nobody tells a client of a roam.
	wpa disconnect >/dev/null; sleep 0.5; wpa reconnect >/dev/null; sleep 20; kill $offers; dhcp_server; over 60
}

signal() { hwsim $1 rx_rssi $2 2>/dev/null || hwsim $1 rx_rssi $(printf %u $2); }

case-to-and-fro() {
	between
	wpa set_network 0 bgscan '"simple:1:-60:1"' >/dev/null; wpa reassociate >/dev/null; sleep 3
	begin to-and-fro
	signal 1 -100; said "CTRL-EVENT-CONNECTED.*$(cat $RUN/bssid2)" 20; signal 1 -50; signal 2 -100; lines=$(wc -l <"$out/supplicant.log"); said "CTRL-EVENT-CONNECTED.*$(cat $RUN/bssid1)" 20; signal 2 -50; over
	between
	# A look around shortly before would be part of what is asked for now.
	sleep 3
	wpa set_network 0 bgscan '""' >/dev/null; wpa reassociate >/dev/null; sleep 3
}

case-both-silent() {
	begin both-silent
	hwsim 1 group 4; hwsim 2 group 4; said "CTRL-EVENT-DISCONNECTED" 30; sleep 30; hwsim 2 group 1; until_at 2 60; over 40
}

supplicant() { pgrep -f "^wpa_supplicant .*-c $RUN/wpa.conf"; }

case-killed-supplicant() {
	begin killed-supplicant
	kill -9 $(supplicant); sleep 4
	rm -f $RUN/wpa/w2
	wpa_supplicant -D nl80211 -i w2 -c $RUN/wpa.conf -d -t >>"$out/supplicant.log" 2>&1 &
	sleep 2; wpa_cli -p $RUN/wpa -i w2 -a $RUN/action.sh >/dev/null 2>&1 &
	sleep 2; over 60
	wpa set_network 0 scan_ssid 1 >/dev/null
}

case-stopped-supplicant() {
	begin stopped-supplicant
	local pid=$(supplicant)
	kill -STOP $pid; sleep 1; ap 1 deauthenticate $mac reason=3 >/dev/null; sleep 6; kill -CONT $pid; sleep 1; over 60
}

case-wired-meanwhile() {
	between
	first ip -n sta link add e0 type veth peer name e1 netns ds
	first ip -n ds addr add 10.3.0.1/24 dev e1; first ip -n ds link set e1 up; ip addr add 10.3.0.2/24 dev e0; ip link set e0 up; ip route add default via 10.3.0.1 dev e0 metric 500
	sysctl -qw net.ipv4.conf.w2.ignore_routes_with_linkdown=1
	begin wired-meanwhile
	hwsim 1 group 4; said "CTRL-EVENT-DISCONNECTED" 30; until_at 2 60; over 40
	between
	sysctl -qw net.ipv4.conf.w2.ignore_routes_with_linkdown=0; ip link del e0
}

case-announced() {
	between
	cp $RUN/action.sh $RUN/action.kept; printf '#!/bin/sh\n' >$RUN/action.sh
	kill "$(cat $RUN/dhclient.pid)"; ip addr flush dev w2 scope global; ip addr add 10.1.0.60/24 dev w2; ip route replace default via 10.1.0.1
	first ip -n ds addr add fd07:1::1/64 dev br0 nodad; no_dhcp_server; dhcp_server --enable-ra --ra-param=br0,5,600 --dhcp-range=fd07:1::,ra-only
	sysctl -qw net.ipv6.conf.w2.accept_dad=1 net.ipv6.conf.w2.accept_ra=1; sleep 6
	begin announced
	hwsim 1 group 4; said "CTRL-EVENT-DISCONNECTED" 30; until_at 2 60; over 40
	between
	sysctl -qw net.ipv6.conf.w2.accept_dad=0; ip -6 addr flush dev w2 scope global; first ip -n ds addr del fd07:1::1/64 dev br0; no_dhcp_server; dhcp_server
	cp $RUN/action.kept $RUN/action.sh; chmod +x $RUN/action.sh
}

case-kept() {
	# What ends no link: a switch of the channel for which nobody may send for a second, another country's rules, and power saving.
	begin kept
	ap 1 chan_switch 10 2422 blocktx >/dev/null; sleep 4; more 10 20
	first iw reg set JP; sleep 2; first iw reg set US; sleep 2; more 10 20
	ap 1 chan_switch 10 2412 >/dev/null; sleep 3; iw dev w2 set power_save on; sleep 1; over
}

case-saves-power() {
	begin saves-power
	iw dev w2 set power_save on; sleep 1; roam 2; until_at 2 20; over; iw dev w2 set power_save off
}

case-switch-unheard() {
	begin switch-unheard
	# At once, so that no beacon announces it.
	ap 1 chan_switch 0 2462 >/dev/null; said "CTRL-EVENT-DISCONNECTED" 20; until_at 2 60; over 40
	between
	ap 1 chan_switch 0 2412 >/dev/null; sleep 1; wpa bss_flush 0 >/dev/null; sleep 1
}

case-bridged() {
	between
	for n in 1 2; do ap $n set wds_sta 1 >/dev/null; anew $n; done
	cp $RUN/action.sh $RUN/action.kept; printf '#!/bin/sh\n' >$RUN/action.sh
	wpa terminate >/dev/null; kill "$(cat $RUN/dhclient.pid)"; sleep 1; ip addr flush dev w2 scope global; ip link set w2 down; iw dev w2 set 4addr on
	ip link add br5 type bridge; ip link set w2 master br5; ip link set w2 up; ip link set br5 up; ip addr add 10.1.0.61/24 dev br5; ip route replace default via 10.1.0.1
	wpa_supplicant -D nl80211 -i w2 -b br5 -c $RUN/wpa.conf -d -t >>"$out/supplicant.log" 2>&1 &
	sleep 2; wpa set_network 0 scan_ssid 1 >/dev/null
	begin bridged
	roam 2; until_at 2 20; over
	hwsim 2 group 4; said "CTRL-EVENT-DISCONNECTED" 30; until_at 1 60; over 40
	between
}

. "$HERE/chance.sh"

# What is played together: no group needs more than some eight minutes of an emulated processor.
group() {
	case $1 in
	failures) echo together roam-fails sent-away-in-handshake sent-away-at-once same-again during-a-scan hidden ;;
	interfaces) echo shut rfkill removed two-stations access-point mesh channel-switch same-channel ;;
	paths) echo vlan roam-back roam-in-scan gone-in-handshake shut-in-handshake shut-in-scan two-stations ;;
	choices) echo left-then-shut static renamed reconnect-late nothing other-network flow-pauses ;;
	peers) echo sent-away-in-dhcp asked-to-go killed-access-point ended-supplicant moved ;;
	asked) echo asked-to-go asked-refused reassociate unprotected wired cuts no-route ;;
	refusals) echo full association-refused denied disassociated-idle static-silent ;;
	again) echo sae-again eap-again over-the-ds no-handshake lease-refused to-and-fro ;;
	away) echo kept saves-power both-silent killed-supplicant stopped-supplicant wired-meanwhile announced switch-unheard bridged ;;
	addresses) echo dhcp-late no-ack conflict duplicate-v6 ;;
	*) echo "$1" ;;
	esac
}

: >"$out/cases.log"; : >"$out/not-made.log"
planned=$(for one in "$@"; do group "$one"; done | tr ' ' '\n')
echo "$planned" >"$out/cases.planned"
wpa set_network 0 scan_ssid 1 >/dev/null
for one in $planned; do "case-$one"; between; done
finish

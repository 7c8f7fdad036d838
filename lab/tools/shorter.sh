#!/bin/bash
# What shortens the search of a handover, tried one after the other in one recording: each from the first access point to the second, the same way lost, and back. Called by handover.sh.
#     shorter.sh OUT [WAY...]     these only; otherwise all
# OUT/ways.log: seconds since 1970 and which way begins, lines that `kpat integrate --log` takes.
set -u
export PATH=$PATH:/usr/sbin:/sbin
RUN=/run/handover
out=$1
shift
ways=" $* "
first() { nsenter -t 1 -n -m "$@"; }
wpa() { wpa_cli -p $RUN/wpa -i w2 "$@"; }
status() { wpa status | sed -n "s/^$1=//p"; }
hwsim() { first sh -c "echo $3 > /sys/kernel/debug/ieee80211/$(cat $RUN/phy$1)/hwsim/$2"; }
signal() { hwsim $1 rx_rssi $2 2>/dev/null || hwsim $1 rx_rssi $(printf %u $2); }
echoes() { grep -c ' echo ' "$out/voice.log" 2>/dev/null; }
more() { # echoes, seconds
	local before=$(echoes) end=$((SECONDS + $2))
	while [ $SECONDS -lt $end ]; do [ "$(echoes)" -ge $((before + $1)) ] && return; sleep 0.25; done
	echo "no echoes"
}
at() { [ "$(status wpa_state)" = COMPLETED ] && [ "$(status bssid)" = "$(cat $RUN/bssid$1)" ]; }
until_at() { # which, seconds
	local end=$((SECONDS + $2))
	while [ $SECONDS -lt $end ]; do at $1 && return; sleep 0.25; done
	echo "not at $1"
}

bands() { # MHz from, to: frequencies that this radio may use
	iw phy "$(cat $RUN/phy3)" channels 2>/dev/null | awk -v from=$1 -v to=$2 '/MHz/ { f = $2; off = /disabled/ } /MHz/ && !off && f >= from && f <= to { print f }' | tr '\n' ' '
}
two=$(bands 2400 2500) five=$(bands 5000 5900) six=$(bands 5935 7200)
echo "channels of 2.4 GHz: $two; 5 GHz: $five; 6 GHz: $six" >"$out/channels.txt"

ours() { # options of the network, one `NAME VALUE` in each argument
	wpa set_network 0 freq_list "" >/dev/null
	wpa set_network 0 scan_freq "" >/dev/null
	wpa set_network 0 bgscan '""' >/dev/null
	wpa set_network 0 key_mgmt WPA-PSK >/dev/null
	for o in "$@"; do wpa set_network 0 ${o%% *} "${o#* }" >/dev/null; done
}
asked() { [ "$ways" = "  " ] || [[ $ways == *" $1 "* ]]; }
begin() { # name, options: at the first access point, with them
	local name=$1
	shift
	signal 1 -30; signal 2 -30; hwsim 1 group 1; hwsim 2 group 1
	ours "$@" "bssid $(cat $RUN/bssid1)"
	wpa bss_flush 0 >/dev/null
	wpa disconnect >/dev/null
	wpa reconnect >/dev/null
	until_at 1 60
	wpa set_network 0 bssid any >/dev/null
	more 30 40
	echo "$(date +%s.%6N): way $name" >>"$out/ways.log"
}
lose() { wpa bss_flush 0 >/dev/null; signal 1 -90; sleep 0.5; hwsim 1 group 4; }
over() { until_at 2 60; more 30 40; }
# In a roam nobody tells the DHCP client: with the address of the other network no echo comes.
roamed() { until_at 2 15; more 30 5; }
know() { # that the second is there
	wpa scan freq=2412,2437 >/dev/null
	for _ in 1 2 3 4 5 6 7 8 9 10; do [ "$(wpa scan_results | grep -c '^02:')" -ge 2 ] && return; sleep 0.5; done
}

: >"$out/ways.log"
# Where the rules of the radio allow 6 GHz; else the next has all there is.
[ "$six" ] && asked all-channels && { begin all-channels; lose; over; }
asked 2.4-and-5-GHz && { begin 2.4-and-5-GHz "freq_list $two$five" "scan_freq $two$five"; lose; over; }
asked 2.4-GHz && { begin 2.4-GHz "freq_list $two" "scan_freq $two"; lose; over; }
asked scan_freq && { begin scan_freq "scan_freq 2412 2437"; lose; over; }
asked background-scan && { begin background-scan "bgscan \"simple:2:-60:60\"" "scan_freq 2412 2437"; know; signal 1 -100; roamed; }
asked 802.11v && {
	begin 802.11v "scan_freq $two"
	hostapd_cli -p $RUN/hostapd1 bss_tm_req "$(cat $RUN/bssid3)" pref=1 abridged=1 neighbor="$(cat $RUN/bssid2)",0x0000,81,6,7 >/dev/null; roamed
}
asked roam && { begin roam "scan_freq 2412 2437"; know; wpa roam "$(cat $RUN/bssid2)" >/dev/null; roamed; }
asked 802.11r && {
	begin 802.11r "scan_freq 2412 2437" "key_mgmt FT-PSK"
	# On an emulated processor the answer can come after the kernel asked again. The access point then waits for the second one's keys (status 55).
	for _ in 1 2 3; do
		know; wpa roam "$(cat $RUN/bssid2)" >/dev/null
		roamed
		at 2 && break
		until_at 1 30
	done
}
asked 802.11k && {
	begin 802.11k "scan_freq $two"
	wpa neighbor_rep_request >/dev/null; sleep 0.5
	wpa scan freq=2437 >/dev/null; sleep 1; wpa roam "$(cat $RUN/bssid2)" >/dev/null; roamed
}
true

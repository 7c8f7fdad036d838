#!/bin/bash
# A station between two access points, all radios emulated, in the lab's namespaces: ap1, ap2, sta, ds (the wire behind the access points, with DHCP and a
# correspondent) and air (hwsim0, which hears every frame).
#     handover.sh radios CASE | network CASE OUT | station CASE OUT | go CASE OUT [GROUP|CASE of lab/tools/cases.sh, WAY of shorter.sh...]
# `radios` makes radios and links; `network` is access points, DHCP and the correspondent's echo, `station` the supplicant and its DHCP client with their logs, until
# they are ended; `go` runs a voice flow of the station and triggers the handover 3 s later. What is written to OUT beside is truth for kpat's record:
# supplicant.log, iw-event.log, ip-monitor.log, dhcp.log, action.log, voice.log, and trace.txt, tracefs' own text of the same tracepoints on the same clock.
set -u
export PATH=$PATH:/usr/sbin:/sbin
HERE=$(dirname "$(readlink -f "$0")")
RUN=/run/handover
TRACING=/sys/kernel/tracing/instances/handover
first() { nsenter -t 1 -n -m "$@"; }
mkdir -p $RUN

# Of each case: networks of the two access points (empty password: open), same subnet or another, seconds of the flow, what triggers.
WORDS=-dd DEBUG=-d SECURITY=psk EXTRA= GLOBAL= FLUSH= LATE= STARTS= PRESCAN= DHCP=yes V6= WRONG= RADIOS=3 LEVEL=0 SNIFFERS=
case "$2" in
S1) SSID1=kpat-open PSK1= SSID2=kpat-psk PSK2=kpat-secret SUBNET=other FLOW=30 FLUSH=1 TRIGGER=vanish ;;
S2) SSID1=kpat PSK1=kpat-secret SSID2=kpat PSK2=kpat-secret SUBNET=same FLOW=12 PRESCAN=1 TRIGGER=roam ;;
S3) SSID1=kpat PSK1=kpat-secret SSID2=kpat PSK2=kpat-secret SUBNET=other FLOW=25 TRIGGER=stop ;;
S4) SSID1=kpat-open PSK1= SSID2=kpat-psk PSK2=kpat-secret SUBNET=other FLOW=75 FLUSH=1 LATE=40 TRIGGER=vanish ;;
figure) SSID1=kpat PSK1=kpat-secret SSID2=kpat PSK2=kpat-secret SUBNET=other FLOW=75 LATE=40 RADIOS=5 SNIFFERS='2412 2437' TRIGGER=walk ;;
shorter) SSID1=kpat PSK1=kpat-secret SSID2=kpat PSK2=kpat-secret SUBNET=other FLOW=300 WORDS=-d DEBUG= TRIGGER=each ;;
cases) SSID1=kpat PSK1=kpat-secret SSID2=kpat PSK2=kpat-secret SUBNET=same FLOW=220 WORDS=-d DEBUG= PRESCAN=1 RADIOS=5 LEVEL=2 TRIGGER=cases ;;
roams) SSID1=kpat PSK1=kpat-secret SSID2=kpat PSK2=kpat-secret SUBNET=same FLOW=12 PRESCAN=1 WORDS= DEBUG= TRIGGER=roam ;;
# By its number, what protects it.
chance-*) SSID1=kpat PSK1=kpat-secret SSID2=kpat PSK2=kpat-secret SUBNET=same FLOW=220 WORDS=-d DEBUG= PRESCAN=1 RADIOS=5 LEVEL=2 TRIGGER=cases
	ways=(psk open sae ft)
	export CHANCE=${2#chance-}
	export CHANCE_SECURITY=${ways[$((CHANCE % 4))]}
	case $CHANCE_SECURITY in open) PSK1= PSK2= ;; *) SECURITY=$CHANCE_SECURITY ;; esac
	;;
S5) SSID1=kpat PSK1=kpat-secret SSID2=kpat PSK2=kpat-secret SUBNET=other FLOW=20 PRESCAN=1 TRIGGER=stop ;;
S6) SSID1=kpat PSK1=kpat-secret SSID2=kpat PSK2=kpat-secret SUBNET=same FLOW=25 PRESCAN=1 TRIGGER=fade
	EXTRA=$'bgscan="simple:4:-60:60"\n scan_freq=2412 2437 2462\n freq_list=2412 2437 2462' ;;
open) SSID1=kpat-open PSK1= SSID2=kpat-open PSK2= SUBNET=same FLOW=12 PRESCAN=1 TRIGGER=roam ;;
sae) SSID1=kpat PSK1=kpat-secret SSID2=kpat PSK2=kpat-secret SUBNET=same FLOW=15 PRESCAN=1 TRIGGER=roam SECURITY=sae ;;
ft) SSID1=kpat PSK1=kpat-secret SSID2=kpat PSK2=kpat-secret SUBNET=same FLOW=12 PRESCAN=1 TRIGGER=roam SECURITY=ft ;;
ipv6) SSID1=kpat PSK1=kpat-secret SSID2=kpat PSK2=kpat-secret SUBNET=other FLOW=20 PRESCAN=1 TRIGGER=stop V6=1 ;;
# Nothing of IPv4: addresses by the router's announcements, which nobody asks for, or by DHCPv6.
ipv6-only) SSID1=kpat PSK1=kpat-secret SSID2=kpat PSK2=kpat-secret SUBNET=other FLOW=20 PRESCAN=1 FLUSH=1 TRIGGER=stop V6=only DHCP= ;;
dhcpv6) SSID1=kpat PSK1=kpat-secret SSID2=kpat PSK2=kpat-secret SUBNET=other FLOW=20 PRESCAN=1 FLUSH=1 TRIGGER=stop V6=dhcp DHCP=6 ;;
no-dhcp) SSID1=kpat PSK1=kpat-secret SSID2=kpat PSK2=kpat-secret SUBNET=other FLOW=25 PRESCAN=1 TRIGGER=stop DHCP=first ;;
# The DHCP client is started so many seconds after the port is open.
late-client) SSID1=kpat PSK1=kpat-secret SSID2=kpat PSK2=kpat-secret SUBNET=other FLOW=25 PRESCAN=1 TRIGGER=stop STARTS=14 ;;
wrong-password) SSID1=kpat-one PSK1=kpat-secret SSID2=kpat-two PSK2=kpat-secret SUBNET=other FLOW=25 PRESCAN=1 TRIGGER=stop WRONG=1 ;;
*) echo "there is no case $2" >&2; exit 2 ;;
esac

# Where both access points are to be known before, the full scan that finds them is not what is looked at.
[ "$PRESCAN" ] && [ -z "$EXTRA" ] && EXTRA='scan_freq=2412 2437'

case $V6 in only | dhcp) CORRESPONDENT=fd07:9::2 FAMILY=-6 ;; *) CORRESPONDENT=10.9.0.2 FAMILY=-4 ;; esac

status() { wpa_cli -p $RUN/wpa -i w2 status | sed -n "s/^$1=//p"; }
hwsim() { # number of the access point, file, value
	first sh -c "echo $3 > /sys/kernel/debug/ieee80211/$(cat $RUN/phy$1)/hwsim/$2"
}
signal() { # number of the access point, dBm; older kernels refuse negative text
	hwsim $1 rx_rssi $2 2>/dev/null || hwsim $1 rx_rssi $(printf %u $2)
}
serving() { # number of the access point that the station is at
	[ "$(status bssid)" = "$(cat $RUN/bssid1)" ] && echo 1 || echo 2
}

case "$1" in
radios)
	first modprobe -r mac80211_hwsim 2>/dev/null
	first modprobe mac80211_hwsim radios=$RADIOS || exit
	# Rules that leave a radio 6 GHz; without a database there are none but the world's.
	if [ $TRIGGER = each ] && [ -e /lib/firmware/regulatory.db ]; then
		first iw reg set US
		for _ in $(seq 50); do first iw reg get | grep -q '^country US' && break; sleep 0.1; done
	fi
	set -- $(first ls /sys/class/ieee80211 | sort -V)
	n=0
	fourth=sta
	[ "$SNIFFERS" ] && fourth=air
	for ns in ap1 ap2 sta $fourth air; do
		[ "${1-}" ] || break
		n=$((n + 1))
		# Since 7.2 the emulated radio encrypts by itself, and drops with a warning (net/mac80211/wpa.c) what came over a bridge without 8 bytes of headroom for it: mac80211's fast path
		# makes none. With a threshold for fragments, above any frame's size, an access point does not take that path.
		case $ns in ap*) first iw phy "$1" set frag 2346 ;; esac
		first iw phy "$1" set netns name $ns
		echo "$1" >$RUN/phy$n
		dev=$(ip netns exec $ns iw dev | sed -n 's/.*Interface //p' | grep -v '^w[0-9]$')
		ip -n $ns link set "$dev" name w$((n - 1))
		ip -n $ns link show w$((n - 1)) | sed -n 's/.*link.ether \([^ ]*\).*/\1/p' >$RUN/bssid$n
		ip -n $ns link set lo up
		shift
	done
	first ip link set hwsim0 netns air
	# One sniffer on each channel, who hear also what fell silent for the station.
	n=4
	for mhz in $SNIFFERS; do
		dev=w$((n - 1))
		ip netns exec air iw dev $dev set type monitor
		ip -n air link set $dev up
		ip netns exec air iw dev $dev set freq $mhz
		hwsim $n group 5
		n=$((n + 1))
	done
	ip -n air link set hwsim0 up
	ip -n ds link set lo up
	ip -n ds addr add 10.9.0.2/32 dev lo
	ip netns exec ds sysctl -qw net.ipv4.ip_forward=1
	for n in 1 2; do
		ip link add v$n netns ap$n type veth peer name d$n netns ds
		ip -n ap$n link add br0 type bridge
		ip -n ap$n link set v$n master br0
		ip -n ap$n link set v$n up
		ip -n ap$n link set br0 up
		ip -n ds link set d$n up
	done
	if [ $SUBNET = same ]; then
		ip -n ds link add br0 type bridge
		ip -n ds link set d1 master br0
		ip -n ds link set d2 master br0
		ip -n ds link set br0 up
		ip -n ds addr add 10.1.0.1/24 dev br0
	else
		ip -n ds addr add 10.1.0.1/24 dev d1
		ip -n ds addr add 10.2.0.1/24 dev d2
	fi
	;;
network)
	out=$3
	options="--dhcp-range=10.1.0.50,10.1.0.99,255.255.255.0,1h"
	if [ $SUBNET = same ]; then
		options="$options --interface=br0"
	elif [ "$DHCP" = first ]; then
		options="$options --interface=d1"
	else
		options="$options --interface=d1 --interface=d2 --dhcp-range=10.2.0.50,10.2.0.99,255.255.255.0,1h"
	fi
	if [ "$V6" ]; then
		ip -n ds addr add fd07:1::1/64 dev d1
		ip -n ds addr add fd07:2::1/64 dev d2
		ip -n ds addr add fd07:9::2/128 dev lo
		ip netns exec ds sysctl -qw net.ipv6.conf.all.forwarding=1
		case $V6 in
		# The routers of both networks are one by their address, as with VRRP: who stays with it needs no announcement.
		dhcp)
			for n in 1 2; do ip -n ds addr flush dev d$n scope link; ip -n ds addr add fe80::1/64 dev d$n nodad; done
			options="--interface=d1 --interface=d2 --enable-ra --ra-param=d1,5,600 --ra-param=d2,5,600 --dhcp-range=fd07:1::100,fd07:1::1ff,64 --dhcp-range=fd07:2::100,fd07:2::1ff,64"
			;;
		only) options="--interface=d1 --interface=d2 --enable-ra --ra-param=d1,5,600 --ra-param=d2,5,600 --dhcp-range=fd07:1::,ra-only --dhcp-range=fd07:2::,ra-only" ;;
		*) options="$options --enable-ra --dhcp-range=fd07:1::,ra-only --dhcp-range=fd07:2::,ra-only" ;;
		esac
	fi
	dnsmasq --port=0 --keep-in-foreground --conf-file=/dev/null --user=root --dhcp-authoritative --no-ping $options \
		--log-dhcp --log-facility="$out/dnsmasq.log" --dhcp-leasefile=$RUN/leases --pid-file= &
	echo $! >$RUN/dnsmasq.pid
	python3 "$HERE/voice.py" echo 5004 "$out/voice-peer.log" &
	echo $! >$RUN/echo.pid
	for n in 1 2; do
		eval "ssid=\$SSID$n psk=\$PSK$n"
		ways=WPA-PSK
		[ $TRIGGER = each ] && ways='WPA-PSK FT-PSK'
		{
			printf 'interface=w%d\nbridge=br0\ndriver=nl80211\nssid=%s\nhw_mode=g\nchannel=%d\n' $((n - 1)) "$ssid" $((n * 5 - 4))
			# Handshakes on a slow processor need more than the usual four attempts.
		printf 'wpa_pairwise_update_count=30\nwpa_group_update_count=30\n'
		printf 'beacon_int=100\nctrl_interface=%s/hostapd%d\nlogger_stdout=-1\nlogger_stdout_level=%d\n' $RUN $n $LEVEL
			[ "$psk" ] && case $SECURITY in
			sae) printf 'wpa=2\nwpa_key_mgmt=SAE\nieee80211w=2\nrsn_pairwise=CCMP\nsae_password=%s\n' "$psk" ;;
			ft)
				printf 'wpa=2\nwpa_key_mgmt=FT-PSK\nrsn_pairwise=CCMP\nwpa_passphrase=%s\nmobility_domain=a1b2\n' "$psk"
				printf 'nas_identifier=ap%d\nft_psk_generate_local=1\nft_over_ds=0\n' $n
				;;
			*) printf 'wpa=2\nwpa_key_mgmt=%s\nrsn_pairwise=CCMP\nwpa_passphrase=%s\n' "$ways" "$psk" ;;
			esac
			# 802.11r, k and v, for stations that ask for them.
			[ $TRIGGER = each ] && printf 'mobility_domain=a1b2\nnas_identifier=ap%d\nft_psk_generate_local=1\nft_over_ds=0\nrrm_neighbor_report=1\nbss_transition=1\n' $n
		} >$RUN/ap$n.conf
		ip netns exec ap$n hostapd -t $DEBUG $RUN/ap$n.conf >"$out/hostapd$n.log" 2>&1 &
		echo $! >$RUN/ap$n.pid
		# The station begins at the first.
		[ $n = 1 ] && until hostapd_cli -p $RUN/hostapd1 status 2>/dev/null | grep -q '^state=ENABLED'; do sleep 0.1; done
	done
	[ "$LATE" ] && { sleep 1; hwsim 2 group 4; }
	touch $RUN/network
	wait
	;;
station)
	out=$3
	until [ -e $RUN/network ]; do sleep 0.1; done
	network() { # SSID, password
		printf 'network={\n ssid="%s"\n' "$1"
		if [ -z "$2" ]; then echo " key_mgmt=NONE"; elif [ $SECURITY = sae ]; then printf ' key_mgmt=SAE\n ieee80211w=2\n psk="%s"\n' "$2"
		elif [ $SECURITY = ft ]; then printf ' key_mgmt=FT-PSK\n psk="%s"\n' "$2"; else printf ' psk="%s"\n' "$2"; fi
		printf ' %s\n}\n' "$EXTRA"
	}
	{
		printf 'ctrl_interface=%s/wpa\nap_scan=1\n' $RUN
		network "$SSID1" "$PSK1"
		[ "$SSID1" != "$SSID2" ] && network "$SSID2" "${WRONG:+not-}$PSK2"
	} >$RUN/wpa.conf
	cat >$RUN/action.sh <<-X
		#!/bin/sh
		echo "\$(cut -d' ' -f1 /proc/uptime) \$2" >>$out/action.log
		case \$2 in
		CONNECTED)
			[ -f $RUN/dhclient.pid ] && kill \$(cat $RUN/dhclient.pid) 2>/dev/null
			[ -f $RUN/udhcpc.pid ] && kill \$(cat $RUN/udhcpc.pid) 2>/dev/null
			[ "$DHCP" ] || exit 0
			[ "$STARTS" ] && [ -e $RUN/station ] && sleep $STARTS
			# A client that asks, before it takes an address, whether another host has it.
			[ -f $RUN/udhcpc ] && { busybox udhcpc -f -a -p $RUN/udhcpc.pid -i \$1 -s $RUN/udhcpc.sh >$RUN/dhcp 2>&1 & exit; }
			# Its script would write the machine's /etc/resolv.conf, which all network namespaces share: a hook that only it sees keeps it from that.
			unshare -m sh -c 'hooks=/etc/dhcp/dhclient-enter-hooks.d; [ -d \$hooks ] && mount -t tmpfs none \$hooks && echo "make_resolv_conf() { :; }" >\$hooks/none; exec "\$@"' - \
				dhclient $FAMILY -d -v -pf $RUN/dhclient.pid -lf $RUN/dhclient.leases \$1 >$RUN/dhcp 2>&1 &
			;;
		DISCONNECTED) [ -n "$FLUSH" ] && ip addr flush dev \$1 scope global ;;
		esac
	X
	printf '#!/bin/sh\ncase $1 in bound|renew) ip addr add $ip/$mask dev $interface; ip route replace default via ${router%%%% *} dev $interface;; esac\n' >$RUN/udhcpc.sh
	chmod +x $RUN/action.sh $RUN/udhcpc.sh
	rm -f $RUN/dhcp
	python3 "$HERE/stamped.py" $RUN/dhcp "$out/dhcp.log" &
	until [ -p $RUN/dhcp ]; do sleep 0.1; done
	ip link set w2 up
	iw event -t >"$out/iw-event.log" 2>&1 &
	ip -ts monitor link address route neigh >"$out/ip-monitor.log" 2>&1 &
	wpa_supplicant -D nl80211 -i w2 -c $RUN/wpa.conf $WORDS -t >"$out/supplicant.log" 2>&1 &
	until [ -S $RUN/wpa/w2 ]; do sleep 0.1; done
	wpa_cli -p $RUN/wpa -i w2 -a $RUN/action.sh >/dev/null 2>&1 &
	if [ "$PRESCAN" ]; then
		# Both access points are known before the handover.
		n=0
		until ip $FAMILY addr show w2 scope global | grep inet | grep -qv tentative; do
			sleep 0.2
			n=$((n + 1))
			# A supplicant whose handshake failed on a slow processor, and which is sent away while it leaves its network out for that, waits for ever (wpa_supplicant 2.10: all networks are disabled).
			[ $((n % 200)) = 0 ] && [ "$(status wpa_state)" = DISCONNECTED ] && wpa_cli -p $RUN/wpa -i w2 reassociate >/dev/null
		done
		until [ "$(wpa_cli -p $RUN/wpa -i w2 scan_results | grep -c '^02:')" -ge 2 ]; do
			wpa_cli -p $RUN/wpa -i w2 scan freq=2412,2437 >/dev/null
			sleep 1
		done
	fi
	touch $RUN/station
	wait
	;;
ready) [ -e $RUN/station ] && ping -c 1 -W 1 $CORRESPONDENT ;;
trace) # in the first namespaces, which have tracefs
	mkdir -p $TRACING
	echo 0 >$TRACING/tracing_on
	echo boot >$TRACING/trace_clock
	echo 8000 >$TRACING/buffer_size_kb
	# What is not read from an event is not in a trace, either.
	sed -n '/ frame-received *frame=\*/d; s/^\(cfg80211\|mac80211\):\([a-z0-9_]*\) .*/\1\/\2/p' "$HERE/../../crates/model/src/wifi.txt" | while read -r event; do
		[ -e $TRACING/events/$event ] && echo 1 >$TRACING/events/$event/enable
	done
	echo 1 >$TRACING/tracing_on
	;;
go)
	out=$3
	[ $TRIGGER = each ] || [ $TRIGGER = cases ] || first "$0" trace "$2"
	# An emulated processor that others share needs longer than the phases' own times: the flow ends when the station has its network again.
	[ $TRIGGER = cases ] && export VOICE_MS=200
	python3 "$HERE/voice.py" send $CORRESPONDENT 5004 $((FLOW * 4)) "$out/voice.log" &
	flow=$!
	export VOICE=$flow
	echoes() { echo $(($(grep -c ' echo ' "$out/voice.log" 2>/dev/null) + 0)); }
	until [ "$(echoes)" -ge $((2000 / ${VOICE_MS:-20})) ]; do sleep 0.1; done
	at=$(serving)
	cp $RUN/phy3 "$out/radio.txt"
	echo "$(date +%s.%N) $(cut -d' ' -f1 /proc/uptime)" >"$out/clock.txt"
	cut -d' ' -f1 /proc/uptime >"$out/trigger.txt"
	case $TRIGGER in
	vanish) hwsim $at group 4 ;;
	stop) kill "$(cat $RUN/ap$at.pid)" ;;
	# Away from it: weaker and weaker, then out of reach.
	walk)
		for dbm in 45 60 75 90; do signal $at -$dbm; sleep 0.3; done
		hwsim $at group 4
		;;
	cases) shift 3; "$HERE/cases.sh" "$out" "$@"; code=$?; kill $flow; wait $flow; exit $code ;;
	each) shift 3; "$HERE/shorter.sh" "$out" "$@"; code=$?; kill $flow; wait $flow; exit $code ;;
	roam) wpa_cli -p $RUN/wpa -i w2 roam "$(cat $RUN/bssid$((3 - at)))" ;;
	# The sender's power is added.
	fade) signal $at -100 ;;
	esac
	[ "$LATE" ] && { sleep "$LATE"; hwsim $((3 - at)) group 1; }
	sleep 2
	if [ "$DHCP" = first ] || [ "$WRONG" ]; then
		sleep $FLOW
	else
		# What was on its way when it stopped does not count.
		before=$(echoes)
		for _ in $(seq $((FLOW * 4))); do
			[ "$(status bssid)" = "$(cat $RUN/bssid$((3 - at)))" ] && [ "$(status wpa_state)" = COMPLETED ] && [ "$(echoes)" -ge $((before + 100)) ] && break
			sleep 1
		done
		[ $SUBNET = other ] || sleep 5
	fi
	kill $flow
	wait $flow
	first sh -c "echo 0 >$TRACING/tracing_on; cat $TRACING/trace" >"$out/trace.txt"
	status wpa_state
	status bssid
	echo "serving $at at first"
	;;
esac

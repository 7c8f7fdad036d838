#!/bin/sh
# Two emulated radios as access point and station with WPA2, each in its namespace, and the air (hwsim0) in a third.
#     wifi.sh radios AP STATION AIR | wifi.sh access-point FOLDER | wifi.sh station FOLDER
# `radios` gives them away; the other two run inside their namespace, `station` until it is ended.
set -eu
PATH=$PATH:/usr/sbin:/sbin
first() { nsenter -t 1 -n -m "$@"; }

case "$1" in
radios)
	ap=$2 station=$3 air=$4
	set -- $(first ls /sys/class/ieee80211 | sort)
	first iw phy "$1" set netns name "$ap"
	first iw phy "$2" set netns name "$station"
	first ip link set hwsim0 netns "$air"
	ip -n "$air" link set hwsim0 up
	;;
access-point)
	dev=$(iw dev | sed -n 's/.*Interface //p')
	mkdir -p "$2"
	cat >"$2/hostapd.conf" <<-X
		interface=$dev
		driver=nl80211
		ssid=lab
		hw_mode=g
		channel=1
		wmm_enabled=1
		wpa=2
		wpa_key_mgmt=WPA-PSK
		rsn_pairwise=CCMP
		wpa_passphrase=not a secret
	X
	ip link set "$dev" name w0
	sed -i "s/^interface=.*/interface=w0/" "$2/hostapd.conf"
	ip addr add 10.7.1.1/24 dev w0
	hostapd -B -f "$2/hostapd.log" "$2/hostapd.conf" >/dev/null
	;;
station)
	dev=$(iw dev | sed -n 's/.*Interface //p')
	mkdir -p "$2"
	ip link set "$dev" name w1
	printf 'network={\n ssid="lab"\n psk="not a secret"\n scan_freq=2412\n}\n' >"$2/wpa.conf"
	ip addr add 10.7.1.2/24 dev w1
	exec wpa_supplicant -D nl80211 -i w1 -c "$2/wpa.conf" -f "$2/wpa.log"
	;;
esac

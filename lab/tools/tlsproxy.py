#!/usr/bin/env python3
"""TLS in, plain TCP out, as a proxy before a receiver does: tlsproxy.py KEY CERT PORT SEEN

Prints `port N`. What came under TLS is appended to SEEN.
"""
import socket
import ssl
import sys
import threading

key, cert, port, seen = sys.argv[1:]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(cert, key)
listener = socket.create_server(("127.0.0.1", 0))
print("port", listener.getsockname()[1], flush=True)


def carry(a, b, note):
    try:
        while data := a.recv(65536):
            if note:
                with open(seen, "ab") as f:
                    f.write(data)
            b.sendall(data)
    except OSError:
        pass
    for s in (a, b):
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def serve(plain):
    try:
        inner = context.wrap_socket(plain, server_side=True)
    except (OSError, ssl.SSLError):
        return
    outer = socket.create_connection(("127.0.0.1", int(port)))
    threading.Thread(target=carry, args=(outer, inner, False), daemon=True).start()
    carry(inner, outer, True)


while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

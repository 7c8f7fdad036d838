//! Why a program that carried the bytes ended, out of what it printed to standard error.

/// What `openssl s_client` says: why the certificate is not accepted, else the first error on its stack; `None`: neither is there,
/// as it prints also while all is well.
///
/// Source: `verify error:num=N:WHY` of openssl's verification callback, `ID:error:CODE:LIBRARY:FUNCTION:REASON:FILE:LINE:DATA` of
/// ERR_print_errors.
pub(super) fn of_openssl(text: &str, at: &str) -> Option<String> {
    let certificate = text.lines().find_map(|l| l.trim().strip_prefix("verify error:num="));
    if let Some((_, why)) = certificate.and_then(|l| l.split_once(':')) {
        return Some(format!("{at}: its certificate is not accepted: {why}"));
    }
    let error = text.lines().find_map(|l| l.split_once(":error:"))?.1;
    let mut fields = error.splitn(7, ':').skip(3);
    let (reason, data) = (fields.next()?, fields.nth(2).unwrap_or_default().trim());
    let why = match (reason, data) {
        ("wrong version number", _) => "it does not answer by TLS",
        ("system lib", data) if !data.is_empty() => data,
        ("unexpected eof while reading", _) => "the connection was closed",
        (reason, data) if data.starts_with("calling fopen") => {
            return Some(format!("{at}: {reason}, {data}"));
        }
        (reason, _) => reason,
    };
    Some(format!("{at}: {why}"))
}

/// The last line of another program, `ssh` for example.
pub(super) fn last(text: &str) -> Option<String> {
    text.lines().map(str::trim).rfind(|l| !l.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As openssl 3.0 and, the last, 1.1.1 print it.
    #[test]
    fn why_openssl_ended() {
        let stack = "4077BC77327F0000:error:0A000086:SSL routines:tls_post_process_server_certificate:certificate verify failed:../ssl/statem/statem_clnt.c:1889:\n";
        let of = |text: &str| of_openssl(text, "h:1").unwrap_or_default();
        for (text, want) in [
            (
                "depth=0 CN = a\nverify error:num=10:certificate has expired\nnotAfter=Feb  1 00:00:00 2025 GMT\n",
                "h:1: its certificate is not accepted: certificate has expired",
            ),
            (
                "depth=0 CN = other\nverify error:num=62:hostname mismatch\n",
                "h:1: its certificate is not accepted: hostname mismatch",
            ),
        ] {
            assert_eq!(of(&format!("{text}{stack}")), want);
        }
        for (text, want) in [
            (stack, "h:1: certificate verify failed"),
            (
                "40C74FB6837F0000:error:8000006F:system library:BIO_connect:Connection refused:../crypto/bio/bio_sock2.c:117:calling connect()\n40C74FB6837F0000:error:10000067:BIO routines:BIO_connect:connect error:../crypto/bio/bio_sock2.c:119:\nconnect:errno=111\n",
                "h:1: Connection refused",
            ),
            (
                "40F7DA46BF7F0000:error:10080002:BIO routines:BIO_lookup_ex:system lib:../crypto/bio/bio_addr.c:746:Name or service not known\nconnect:errno=2\n",
                "h:1: Name or service not known",
            ),
            (
                "404739B6107F0000:error:0A00010B:SSL routines:ssl3_get_record:wrong version number:../ssl/record/ssl3_record.c:350:\n",
                "h:1: it does not answer by TLS",
            ),
            (
                "40D71FCE817F0000:error:80000002:system library:BIO_new_file:No such file or directory:../crypto/bio/bss_file.c:67:calling fopen(/nonexist, r)\n",
                "h:1: No such file or directory, calling fopen(/nonexist, r)",
            ),
            ("depth=1 CN = test ca\nverify return:1\ndepth=0 CN = good\nverify return:1\n", ""),
            ("a:error:\nb:error:1:2\n", ""),
            (
                "139:error:0200206F:system library:connect:Connection refused:../crypto/bio/b_sock2.c:110:\n",
                "h:1: Connection refused",
            ),
        ] {
            assert_eq!(of(text), want, "{text}");
        }
        assert_eq!(last("a\n b \n\n").as_deref(), Some("b"));
    }
}

//! SSRF guard: webhooks and remote agents may use globally routable addresses only. The ranges are
//! those of IANA's special-purpose registries, and addresses inside public ranges at which a cloud
//! answers the machines it hosts. An IPv6 address outside the allocated global range is refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Ranges that are not public: the first address, and the number of its bits that count.
const V4: &[([u8; 4], u32)] = &[
    ([0, 0, 0, 0], 8),        // this network
    ([10, 0, 0, 0], 8),       // private
    ([100, 64, 0, 0], 10),    // shared by customers of a carrier
    ([127, 0, 0, 0], 8),      // loopback
    ([168, 63, 129, 16], 32), // Azure's wire server, which gives a machine its secrets
    ([169, 254, 0, 0], 16),   // link-local, where clouds keep their metadata
    ([172, 16, 0, 0], 12),    // private
    ([192, 0, 0, 0], 24),     // protocol assignments
    ([192, 0, 2, 0], 24),     // documentation
    ([192, 88, 99, 0], 24),   // relays from IPv6, withdrawn
    ([192, 168, 0, 0], 16),   // private
    ([198, 18, 0, 0], 15),    // benchmarks
    ([198, 51, 100, 0], 24),  // documentation
    ([203, 0, 113, 0], 24),   // documentation
    ([224, 0, 0, 0], 4),      // multicast
    ([240, 0, 0, 0], 4),      // reserved, and broadcast
];

/// The part of IPv6 that is routed publicly…
const V6_GLOBAL: (u128, u32) = (0x2000 << 112, 3);
/// …and the ranges inside it that are not public.
const V6: &[(u128, u32)] = &[
    (0x2001 << 112, 23),     // protocol assignments; Teredo, which wraps IPv4
    (0x2001_0db8 << 96, 32), // documentation
    (0x2002 << 112, 16),     // 6to4, which wraps IPv4
    (0x3fff << 112, 20),     // documentation
];

/// Ranges with an IPv4 address in the last 32 bits, which is the address that is really reached.
const V4_INSIDE: &[(u128, u32)] = &[
    (0xffff << 32, 96),      // ::ffff:0:0/96, mapped
    (0x0064_ff9b << 96, 96), // 64:ff9b::/96, translated on the way
];

/// An ISATAP interface identifier, which carries an IPv4 address in its last 32 bits. The bit that
/// says whether that address is globally unique does not count.
const ISATAP: u32 = 0x0000_5efe;
const ISATAP_MASK: u32 = 0xfdff_ffff;

pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let bits = address.to_bits();
    !V4.iter().any(|(first, len)| (bits ^ u32::from_be_bytes(*first)) >> (32 - len) == 0)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let bits = address.to_bits();
    let within = |(first, len): &(u128, u32)| (bits ^ first) >> (128 - len) == 0;
    match V4_INSIDE.iter().any(within) {
        true => is_public_v4(Ipv4Addr::from_bits(bits as u32)),
        false if (bits >> 32) as u32 & ISATAP_MASK == ISATAP => false,
        false => within(&V6_GLOBAL) && !V6.iter().any(within),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first and last address of each range that is refused.
    const REFUSED: &str = "
        0.0.0.0 0.255.255.255  10.0.0.0 10.255.255.255  100.64.0.0 100.127.255.255
        127.0.0.1 127.255.255.255  169.254.0.0 169.254.169.254 169.254.255.255
        172.16.0.0 172.31.255.255  192.0.0.0 192.0.0.255  192.0.2.0 192.0.2.255
        192.88.99.0 192.88.99.255  192.168.0.0 192.168.255.255  198.18.0.0 198.19.255.255
        198.51.100.0 198.51.100.255  203.0.113.0 203.0.113.255  224.0.0.0 239.255.255.255
        240.0.0.0 255.255.255.255
        168.63.129.16 ::ffff:168.63.129.16 64:ff9b::168.63.129.16 2002:a83f:8110::
        100.100.100.200 192.0.0.192 169.254.170.2 169.254.0.23 fd00:ec2::254 fd20:ce::254
        2001:0:a9fe:a9fe::1 2606:4700::5efe:10.0.0.1 2606:4700::200:5efe:169.254.169.254
        :: ::1 ::127.0.0.1 ::8.8.8.8
        ::ffff:0.0.0.0 ::ffff:10.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 ::ffff:192.168.1.1
        64:ff9b::127.0.0.1 64:ff9b::10.1.2.3 64:ff9b::a9fe:a9fe
        64:ff9b:1::1 64:ff9b:1:ffff:ffff:ffff:808:808 64:ff9b::1:0:8.8.8.8
        100::1 2001:: 2001::1 2001:2::1 2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff
        2001:db8:: 2001:db8:ffff:ffff:ffff:ffff:ffff:ffff
        2002:: 2002:7f00:1:: 2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff
        3fff:: 3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff
        1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 4000:: 5f00::1
        fc00:: fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff fd00:ec2::254
        fe80:: fe80::1 febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff fec0::1 ff00:: ff02::1
        ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";

    /// The neighbours of those ranges, and well-known public addresses.
    const ALLOWED: &str = "
        1.0.0.0 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0
        168.63.129.15 168.63.129.17
        169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0
        192.0.1.255 192.0.3.0 192.88.98.255 192.88.100.0 192.167.255.255 192.169.0.0
        198.17.255.255 198.20.0.0 198.51.99.255 198.51.101.0 203.0.112.255 203.0.114.0
        223.255.255.255 1.1.1.1 8.8.8.8
        ::ffff:8.8.8.8 64:ff9b::8.8.8.8 64:ff9b::808:808
        2000:: 2001:200:: 2001:4860:4860::8888 2001:db7:ffff:: 2001:db9:: 2003:: 2606:4700::1111
        3ffe:ffff:: 3fff:1000:: 3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";

    #[test]
    fn ranges_that_are_not_public_are_refused_up_to_their_edges() {
        for (list, public) in [(REFUSED, false), (ALLOWED, true)] {
            for text in list.split_whitespace() {
                let address = text.parse().unwrap_or_else(|_| panic!("{text} is no address"));
                assert_eq!(is_public(address), public, "{text}");
            }
        }
    }
}

//! Client addresses: the group of addresses that shares a quota, and the ranges that are exempt.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A client with one IPv6 address usually owns the network of this length.
const IPV6_SHARED_BITS: u8 = 64;

/// An address or a network in CIDR notation: `10.0.0.7`, `10.0.0.0/8`, `fd00::/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    network: IpAddr,
    bits: u8,
}

/// Text that is neither an address nor a network.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is neither an IP address nor a network (write 10.0.0.7, 10.0.0.0/8 or fd00::/8)")]
pub struct BadCidr(String);

impl Cidr {
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let mine = self.network;
        address.is_ipv4() == mine.is_ipv4() && masked(address, self.bits) == mine
    }
}

impl FromStr for Cidr {
    type Err = BadCidr;

    fn from_str(text: &str) -> Result<Self, BadCidr> {
        let bad = || BadCidr(text.to_owned());
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let address = address.parse::<IpAddr>().map_err(|_| bad())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(bad)?,
            None => most,
        };
        Ok(Self { network: masked(address, bits), bits })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.bits)
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

/// The address or network under which a client is counted.
pub(super) fn grouped(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        v4 @ IpAddr::V4(_) => v4,
        v6 @ IpAddr::V6(_) => masked(v6, IPV6_SHARED_BITS),
    }
}

fn masked(address: IpAddr, bits: u8) -> IpAddr {
    let bits = u32::from(bits);
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - bits.min(32)).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_contains_its_addresses_and_no_others() {
        for (network, inside, outside) in [
            ("10.0.0.7", "10.0.0.7", "10.0.0.8"),
            ("10.1.2.3/8", "10.255.0.1", "11.0.0.1"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("fd00::/8", "fd12::1", "fe80::1"),
            ("::/0", "::1", "127.0.0.1"),
        ] {
            let cidr: Cidr = network.parse().unwrap();
            assert!(cidr.contains(inside.parse().unwrap()), "{network} {inside}");
            assert!(!cidr.contains(outside.parse().unwrap()), "{network} {outside}");
            assert_eq!(cidr.to_string().parse(), Ok(cidr), "{network}");
        }
        let mapped = "::ffff:10.0.0.7".parse().unwrap();
        assert!("10.0.0.7".parse::<Cidr>().unwrap().contains(mapped));
        for bad in ["", "x", "10.0.0.0/33", "10.0.0.0/", "::/129", "10.0.0.0/-1", "example.org"] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_of_one_ipv6_network_share_a_limit() {
        let group = |text: &str| grouped(text.parse().unwrap());
        assert_eq!(group("2001:db8::1"), group("2001:db8::ffff:2"));
        assert_ne!(group("2001:db8::1"), group("2001:db8:0:1::1"));
        assert_ne!(group("10.0.0.1"), group("10.0.0.2"));
        assert_eq!(group("::ffff:10.0.0.1"), group("10.0.0.1"));
    }
}

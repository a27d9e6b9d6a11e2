//! Lists and maps. They are values like scalars, so one code handles null and omits empty fields
//! for both.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt,
    marker::PhantomData,
};

use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{
    ProtoJson, Trail,
    read::{Seed, refuse},
    write,
};

impl<T: ProtoJson> ProtoJson for Vec<T> {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'[');
        for item in self {
            item.write(out);
            out.push(b',');
        }
        write::close(out, b']');
    }

    fn read<'de, D: Deserializer<'de>>(input: D, trail: &Trail) -> Result<Self, D::Error> {
        input.deserialize_any(ListVisitor { trail, of: PhantomData })
    }
}

struct ListVisitor<'a, T> {
    trail: &'a Trail,
    of: PhantomData<T>,
}

impl<'de, T: ProtoJson> Visitor<'de> for ListVisitor<'_, T> {
    type Value = Vec<T>;

    refuse!("a list": scalar object);

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Vec<T>, A::Error> {
        elements(items, self.trail)
    }
}

pub(super) fn elements<'de, T: ProtoJson, A: SeqAccess<'de>>(
    mut items: A,
    trail: &Trail,
) -> Result<Vec<T>, A::Error> {
    let mut list = Vec::new();
    loop {
        match items.next_element_seed(Seed::new(trail)) {
            Ok(Some(item)) => {
                trail.element::<T, A::Error>()?;
                list.push(item);
            }
            Ok(None) => return Ok(list),
            Err(error) => {
                trail.at_index(list.len());
                return Err(error);
            }
        }
    }
}

impl<T: ProtoJson> ProtoJson for BTreeMap<String, T> {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        for (key, value) in self {
            write::text(out, key);
            out.push(b':');
            value.write(out);
            out.push(b',');
        }
        write::close(out, b'}');
    }

    fn read<'de, D: Deserializer<'de>>(input: D, trail: &Trail) -> Result<Self, D::Error> {
        input.deserialize_any(MapVisitor { trail, of: PhantomData })
    }
}

struct MapVisitor<'a, T> {
    trail: &'a Trail,
    of: PhantomData<T>,
}

impl<'de, T: ProtoJson> Visitor<'de> for MapVisitor<'_, T> {
    type Value = BTreeMap<String, T>;

    refuse!("an object": scalar list);

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Self::Value, A::Error> {
        pairs(entries, self.trail)
    }
}

pub(super) fn pairs<'de, T: ProtoJson, A: MapAccess<'de>>(
    mut entries: A,
    trail: &Trail,
) -> Result<BTreeMap<String, T>, A::Error> {
    let mut map = BTreeMap::new();
    while let Some(key) = entries.next_key::<String>()? {
        trail.entry::<T, A::Error>(map.len())?;
        let value =
            entries.next_value_seed(Seed::new(trail)).inspect_err(|_| trail.at_key(&key))?;
        match map.entry(key) {
            Entry::Vacant(entry) => _ = entry.insert(value),
            Entry::Occupied(entry) => return Err(trail.repeated(entry.key())),
        }
    }
    Ok(map)
}

// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"
	"hash/crc32"
)

// eventFrame is a message of application/vnd.amazon.eventstream: total length,
// length of the headers, CRC-32 of these, headers, payload, CRC-32 of all
// before. All headers are strings (type 7).
func eventFrame(headers [][2]string, payload []byte) []byte {
	var head []byte
	for _, h := range headers {
		head = append(head, byte(len(h[0])))
		head = append(head, h[0]...)
		head = append(head, 7)
		head = binary.BigEndian.AppendUint16(head, uint16(len(h[1])))
		head = append(head, h[1]...)
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(12+len(head)+len(payload)+4))
	b = binary.BigEndian.AppendUint32(b, uint32(len(head)))
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	b = append(b, head...)
	b = append(b, payload...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

func eventOf(kind string, payload []byte) []byte {
	return eventFrame([][2]string{
		{":event-type", kind}, {":content-type", "application/json"}, {":message-type", "event"},
	}, payload)
}

func exceptionOf(kind string, payload []byte) []byte {
	return eventFrame([][2]string{
		{":exception-type", kind}, {":content-type", "application/json"}, {":message-type", "exception"},
	}, payload)
}

// eventStream are AWS's frames.
func (c *call) eventStream() *frames {
	return &frames{
		c: c, header: "application/vnd.amazon.eventstream", w: c.w, done: map[string]bool{}, frame: eventOf,
		broken: func(name string) []byte {
			b := eventOf(name, []byte(`{"broken":true}`))
			b[len(b)-1] ^= 0xff // the checksum
			return b
		},
	}
}

// SPDX-License-Identifier: Apache-2.0

package idemgrpc

import (
	"fmt"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/tierlock/tierlock/idempotency"
)

// Codec is the [idempotency.Request] codec of stored replies: a
// google.protobuf.Any, of the reply or of a google.rpc.Status. What it means never
// changes.
const Codec uint16 = 0x6701

var deterministic = proto.MarshalOptions{Deterministic: true}

func encode(m proto.Message) ([]byte, error) {
	packed := &anypb.Any{}
	if err := anypb.MarshalFrom(packed, m, deterministic); err != nil {
		return nil, fmt.Errorf("%w: %w", idempotency.ErrUnencodablePayload, err)
	}
	return deterministic.Marshal(packed)
}

// decode gives a stored reply, or the error that was stored in place of one.
func decode(b []byte) (proto.Message, error) {
	packed := &anypb.Any{}
	err := proto.Unmarshal(b, packed)
	var m proto.Message
	if err == nil {
		m, err = packed.UnmarshalNew()
	}
	if err != nil {
		return nil, refusal(fmt.Errorf("%w: %w", idempotency.ErrResultUndecodable, err))
	}
	if no, ok := m.(*spb.Status); ok && no.GetCode() != 0 {
		return nil, status.ErrorProto(no)
	}
	return m, nil
}

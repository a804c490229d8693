// SPDX-License-Identifier: Apache-2.0

package redisfast_test

import (
	"context"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tierlock/tierlock/redisfast"
)

func ExampleOpen() {
	filter, err := redisfast.Open("redis://127.0.0.1:6379/0", redisfast.WithTimeout(100*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = filter.Close(context.Background()) }()
	if err := filter.Check(context.Background()); err != nil {
		log.Print(err) // it says what to do
	}
}

func ExampleNew() {
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                 []string{"redis-1:6379", "redis-2:6379"},
		ContextTimeoutEnabled: true, // calls that were given up end soon
	})
	defer func() { _ = client.Close() }() // New never closes it
	filter, err := redisfast.New(client, redisfast.WithPrefix("shop:"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = filter.Close(context.Background()) }()
}

// SPDX-License-Identifier: Apache-2.0

package tier_test

import (
	"context"
	"log"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/tierlock/tierlock/mysqlauth"
	"github.com/tierlock/tierlock/redisfast"
	"github.com/tierlock/tierlock/tier"
)

// One locker serves a whole process, from its start to its end.
func ExampleNew() {
	logger := zap.Must(zap.NewProduction())
	filter, err := redisfast.Open(os.Getenv("REDIS_URL"), redisfast.WithLogger(logger))
	if err != nil {
		log.Fatal(err)
	}
	authority, err := mysqlauth.Open(os.Getenv("LOCK_DSN"), mysqlauth.WithLogger(logger))
	if err != nil {
		log.Fatal(err)
	}
	locker, err := tier.New(filter, authority,
		tier.WithNamespace("shop"), // services can share the servers
		tier.WithTTL(5*time.Second),
		tier.WithWait(500*time.Millisecond),
		tier.WithMaxHold(time.Minute),
		tier.WithMaxWaiters(500),
		tier.WithHolder(os.Getenv("POD_NAME")),
		tier.WithDrain(10*time.Second),
		tier.WithLogger(logger),
	)
	if err != nil {
		log.Fatal(err)
	}
	if err := locker.Check(context.Background()); err != nil {
		log.Fatal(err) // better now than at the first customer
	}

	// ... serve ...

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := locker.Close(ctx); err != nil {
		log.Print(err) // it names what is left to expire
	}
}

-- KEYS: open. ARGV: lease in microseconds, ids. What has lapsed stays so.
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', now + ARGV[1], ARGV[i]) end
return 1
